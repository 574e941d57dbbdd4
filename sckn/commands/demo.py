"""`sckn demo`."""

from time import perf_counter

from sckn.demo import run_demo

__all__ = ["demo"]


def demo() -> None:
    """Train a small network on scikit-learn's digits without labels; about a minute. Example: sckn demo"""
    started = perf_counter()
    report = run_demo(print)
    print()
    print("test error           linear SVM on")
    print(f"  {report.pixels_error:5.2f} %            the pixels")
    print(f"  {report.network_error:5.2f} %            the features of the kernel network")
    print(f"\n{perf_counter() - started:.0f} seconds. Next: sckn train --help, or sckn.CKNClassifier in your own program")
