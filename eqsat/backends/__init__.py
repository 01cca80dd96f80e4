"""What runs or stores a graph: ONNX files in each of their forms, sessions of ONNX Runtime, and which kernels it has."""
