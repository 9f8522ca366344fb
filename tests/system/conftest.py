"""Made-up trees of /proc and /sys."""

import pytest


@pytest.fixture
def tree(tmp_path):
    """Write files below a root; the root."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return write
