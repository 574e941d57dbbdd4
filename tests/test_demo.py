"""The demonstration, as `sckn demo` runs it."""

from sckn.demo import run_demo


def test_the_network_beats_the_pixels() -> None:
    told: list[str] = []
    report = run_demo(told.append)
    assert report.network_error < 2
    assert report.network_error < report.pixels_error < 10
    assert (report.training_images, report.test_images) == (898, 899)  # all 1797 digits
    assert any("898" in line and "899" in line for line in told)
    assert any("pixels" in line for line in told)
    assert any("32 and 128 filters" in line for line in told)
