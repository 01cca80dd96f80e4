"""ONNX files and messages -> Graph."""
