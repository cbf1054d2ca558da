"""What makes a kernel another kernel: its code, not its comments."""

from __future__ import annotations

import pytest

from pymm.kernels import KERNELS, source

SUM = '#include "common/sum.cuh"\n// A story.\nint twice(int x) { return sum(x, x); }\n'
CHANGES = {
    "another story": (SUM.replace("A story", "Another,\n// longer, story"), True),
    "an empty line": (SUM.replace("int twice", "\nint twice"), True),
    "a word behind the code": (SUM.replace("}\n", "}  // 2 x\n"), True),
    "another code": (SUM.replace("sum(x, x)", "sum(x, 1)"), False),
    "a comment less its slashes": (SUM.replace("// A", "A"), False),
}


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """The digest of a kernel file with these texts of its own and of its header."""

    def of(text, header="int sum(int x, int y) { return x + y; }\n"):
        (tmp_path / "common").mkdir(exist_ok=True)
        (tmp_path / "00_twice.cu").write_text(text)
        (tmp_path / "common" / "sum.cuh").write_text(header)
        source.kernel_text.cache_clear()
        return source.kernel_digest("cuda", "00_twice.cu")

    monkeypatch.setattr(source, "shipped_folder", lambda folder: tmp_path)
    yield of
    source.kernel_text.cache_clear()


@pytest.mark.parametrize("change", CHANGES)
def test_a_digest_is_of_the_code(digest, change):
    text, same = CHANGES[change]
    assert (digest(SUM) == digest(text)) == same


def test_headers_count(digest):
    header = "int sum(int x, int y) { return x + y; }\n"
    assert digest(SUM, header) == digest(SUM, "// Adds.\n" + header)
    assert digest(SUM, header) != digest(SUM, header.replace("x + y", "x - y"))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: f"{k.backend}-{k.name}")
def test_no_text_of_the_project_hides_a_comment_in_a_string(kernel):
    """What the digest leaves out is found without looking for strings."""
    for line in source.kernel_text(kernel.backend, kernel.file).splitlines():
        code = line.split("//")[0]
        assert line == code or code.count('"') % 2 == 0, line
