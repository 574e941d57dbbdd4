"""Trained models as ONNX files, which run without Python and PyTorch."""
