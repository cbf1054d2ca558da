"""CUDA C++, preprocessed, into C++ that g++ compiles against device/cuda.hpp.

Three things of the language have no spelling in C++ and are rewritten, each on its own line so
that line numbers stay: ``__shared__`` declarations, ``__global__`` functions (with their launch
bounds and clusters), and ``#pragma unroll``. Everything else is macros and functions of the header.
"""

from __future__ import annotations

import re

from brackets import Refused, match, split, statement_begin


class Kernel:
    """A __global__ function: its body's place, and its address as an expression in that body."""

    def __init__(self, name: str, begin: int, end: int, pointer: str) -> None:
        self.name, self.begin, self.end, self.pointer = name, begin, end, pointer


_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'|^[ \t]*#[^\n]*', re.MULTILINE)
_MARKER = re.compile(r'^#(?:line)? (\d+) "((?:[^"\\]|\\.)*)"((?: \d)*)', re.MULTILINE)
_ATTRIBUTES = ("__launch_bounds__", "__attribute__", "alignas", "__cluster_dims__")

#: The header of the project that has its twin not in its own text but in device/.
_HEADER, _TWIN = "common/hopper.cuh", "using namespace pymm_sim::hopper;"


def _stand_ins(text: str) -> str:
    """`text` with the twin in that header's place, as many lines."""
    markers = [(m.end(), m[2]) for m in _MARKER.finditer(text)]
    ends = [m.start() for m in _MARKER.finditer(text)][1:] + [len(text)]
    parts, done = [], 0
    for (begin, file), end in zip(markers, ends, strict=True):
        if file.endswith(_HEADER) and text[begin:end].strip():
            parts += [text[done:begin], "\n" + _TWIN + "\n" * text.count("\n", begin, end)]
            done = end
    return "".join([*parts, text[done:]])


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


class Translation:
    """One text on its way; `edits` are (begin, end, replacement) on the original."""

    def __init__(self, text: str, unroll: int = 8) -> None:
        self.unroll = unroll
        self.text = text = _stand_ins(text)
        self.code = _LITERAL.sub(_blank, text)  # same length, literals and # lines blanked
        self.edits: list[tuple[int, int, str]] = []
        self.kernels: list[Kernel] = []
        self.bounds: set[str] = set()  # template kernels that have launch bounds

    def place(self, at: int) -> tuple[str, int, bool]:
        """File, line and whether it is a system header, of the text at `at`."""
        file, line, system, last = "kernel.cu", 1, False, 0
        for m in _MARKER.finditer(self.text, 0, at):
            file, line, system, last = m[2], int(m[1]), "3" in m[3], m.end() + 1
        return file, line + self.text.count("\n", last, at), system

    def refuse(self, at: int, why: str) -> None:
        file, line, _ = self.place(at)
        raise Refused(f"{file}:{line}: error: {why}")

    def run(self) -> str:
        self._refuse_what_is_missing()
        for m in re.finditer(r"\b__global__\b", self.code):
            self._global(m.start(), m.end())
        for m in re.finditer(r"\b__shared__\b", self.code):
            self._shared(m.start())
        self._unroll()
        out, done = [], 0
        for begin, end, new in sorted(self.edits):
            out += [self.text[done:begin], new]
            done = end
        return "".join([*out, self.text[done:]])

    def _refuse_what_is_missing(self) -> None:
        for m in re.finditer(r"\b(?:asm|__asm__|__asm)\b", self.code):
            if not self.place(m.start())[2]:
                self.refuse(
                    m.start(),
                    "inline PTX cannot be simulated: put it in common/ptx.cuh "
                    "with a plain C++ twin under #ifdef PYMM_SIMULATOR",
                )

    def _unroll(self) -> None:
        # nvcc unrolls fully, which would make g++ slow. 8 times keeps a register tile in registers,
        # and the loop around a loop around a loop gains nothing more.
        for m in re.finditer(
            r"^[ \t]*#[ \t]*pragma[ \t]+unroll\b[ \t]*\(?(\w*)[^\n]*", self.text, re.MULTILINE
        ):
            wanted = int(m[1]) if m[1].isdigit() else self.unroll
            if self._statement(m.end())[1] > 2:
                wanted = 1
            self.edits.append((*m.span(), f"#pragma GCC unroll {min(max(wanted, 1), self.unroll)}"))

    def _statement(self, at: int) -> tuple[int, int]:
        """End of the statement at `at`, and how deep its loops are nested."""
        head = re.compile(r"\s*(for|while|if|else|do)?\b(\s*constexpr\b)?\s*").match(self.code, at)
        begin = head.end() if head else at
        if head and head[1]:
            opened = self.code[begin : begin + 1] == "(" and head[1] not in ("else", "do")
            after = match(self.code, begin) + 1 if opened else begin
            end, depth = self._statement(after)
            return end, depth + (head[1] in ("for", "while", "do"))
        begin += len(self.code[begin:]) - len(self.code[begin:].lstrip())
        if self.code[begin : begin + 1] != "{":
            return self.code.find(";", begin) + 1, 0
        closing, depth, inner = match(self.code, begin), 0, begin + 1
        while loop := re.compile(r"\b(for|while)\b").search(self.code, inner, closing):
            inner, found = self._statement(loop.start())
            depth = max(depth, found)
        return closing + 1, depth

    # --- __global__ ---------------------------------------------------------------------------

    def _global(self, at: int, after: int) -> None:
        code, begin = self.code, statement_begin(self.code, at)
        name_begin, opening = self._name_and_parameters(after)
        name = self.text[name_begin:opening].strip()
        bounds = self._take("__launch_bounds__", begin, opening)
        cluster = self._take("__cluster_dims__", begin, opening)
        closing = match(code, opening)
        following = re.compile(r"\s*([;{])").match(code, closing + 1)
        if not following:
            self.refuse(at, f"__global__ {name}: neither a body nor ; follows its parameters")
        prefix = code[begin:at]
        template = re.search(r"\btemplate\b\s*(<?)", prefix)
        instance = bool(template and not template[1])
        default = '__attribute__((visibility("default"), noinline))'
        self.edits.append((at, after, "" if instance else default))
        number = len(self.edits)
        if cluster and template:
            self.refuse(at, f"{name}: templates with __cluster_dims__ cannot be simulated")
        if instance:
            base = name.split("<")[0].strip()
            limit = f"pymm_bounds_{base}{name[name.index('<') :]}()" if base in self.bounds else "0"
            self._register(following.end(), number, name, limit, "")
        elif following[1] == "{":
            end = match(code, following.end() - 1)
            pointer = f"&{name}"
            if template:
                parameters = self._template_parameters(begin + template.end() - 1)
                pointer += f"<{', '.join(self._parameter_names(parameters))}>"
                if bounds:
                    self.bounds.add(name)
                    self.edits.append(
                        (
                            end + 1,
                            end + 1,
                            f" template <{parameters}> constexpr int pymm_bounds_{name}"
                            f"() {{ return {split(bounds)[0]}; }}",
                        )
                    )
            else:
                self._register(end + 1, number, name, bounds or "0", cluster)
            self.kernels.append(Kernel(name, following.end(), end, pointer))

    def _register(self, at: int, number: int, name: str, bounds: str, cluster: str) -> None:
        kernel = f'pymm_sim::describe(&{name}, "{name}", {bounds})'
        if cluster:
            kernel = f"pymm_sim::in_clusters({kernel}, {cluster})"
        added = f" static pymm_sim::AddKernel pymm_kernel_{number}{{{kernel}}};"
        self.edits.append((at, at, added))

    def _name_and_parameters(self, at: int) -> tuple[int, int]:
        """Where the name begins and where its parameter list opens, after `__global__`."""
        code = self.code
        while True:
            opening = code.find("(", at)
            if opening < 0:
                self.refuse(at, "__global__ without a function")
            head = re.search(r"(\w+)\s*(<[^;{}]*>)?\s*$", code[at:opening])
            if head is None:
                self.refuse(at, "__global__ without a function name")
            if head[1] not in _ATTRIBUTES:
                return at + head.start(), opening
            at = match(code, opening) + 1

    def _take(self, attribute: str, begin: int, end: int) -> str:
        """The attribute's arguments, which leave the text; nothing where there is none."""
        m = re.compile(rf"\b{attribute}\s*\(").search(self.code, begin, end)
        if not m:
            return ""
        closing = match(self.code, m.end() - 1)
        lines = self.text.count("\n", m.start(), closing)
        self.edits.append((m.start(), closing + 1, "\n" * lines))
        return self.text[m.end() : closing].replace("\n", " ")

    def _template_parameters(self, angle: int) -> str:
        depth = 0
        for i in range(angle, len(self.code)):
            depth += {"<": 1, ">": -1, "(": 1, ")": -1}.get(self.code[i], 0)
            if depth == 0:
                return self.text[angle + 1 : i].replace("\n", " ")
        self.refuse(angle, "template < without >")
        return ""

    @staticmethod
    def _parameter_names(parameters: str) -> list[str]:
        names = []
        for part in split(parameters):
            declared = part.split("=")[0]
            pack = "..." if "..." in declared else ""
            names.append(re.findall(r"\w+", declared)[-1] + pack)
        return names

    # --- __shared__ ---------------------------------------------------------------------------

    def _shared(self, at: int) -> None:
        begin = statement_begin(self.code, at)
        end = self.code.find(";", at)
        if end < 0:
            self.refuse(at, "__shared__ without a declaration")
        begin += len(self.code[begin:at]) - len(self.code[begin:at].lstrip())
        words = self.code[begin:end]
        newlines = "\n" * words.count("\n")
        words = words.replace("\n", " ")
        if "=" in re.sub(r"[<>=!]=", "", words):
            self.refuse(at, "a __shared__ variable may not have an initializer")
        words, alignment = self._take_alignment(words)
        dynamic = re.search(r"\bextern\b", words) is not None
        words = re.sub(r"\b(__shared__|extern|static)\b", " ", words)
        owner = next((k for k in self.kernels if k.begin <= at < k.end), None)
        base, out = "", []
        for i, declarator in enumerate(split(words)):
            before, name, extents = self._declarator(declarator, at)
            base = before if i == 0 else base
            kind = f"pymm_type_{at}_{i}"
            out.append(f"typedef {base if i == 0 else base + before} {kind}{extents};")
            if dynamic:
                out.append(self._dynamic(at, name, kind))
            else:
                out.append(self._static(at, i, name, kind, alignment, owner))
        self.edits.append((begin, end + 1, " ".join(out) + newlines))

    def _take_alignment(self, words: str) -> tuple[str, str]:
        alignment = "0"
        while m := re.search(r"\b(?:alignas|__attribute__)\s*\(", words):
            closing = match(words, m.end() - 1)
            inner = words[m.end() : closing]
            a = re.search(r"aligned\s*\(", inner)
            alignment = inner[a.end() : match(inner, a.end() - 1)] if a else inner
            words = words[: m.start()] + " " + words[closing + 1 :]
        return words, alignment

    def _declarator(self, text: str, at: int) -> tuple[str, str, str]:
        """Type (or the stars before the name), name and extents of `type name[..][..]`."""
        text, extents = text.strip(), ""
        while text.endswith("]"):
            depth, i = 0, len(text)
            while i > 0:
                i -= 1
                depth += {"]": 1, "[": -1}.get(text[i], 0)
                if depth == 0:
                    break
            text, extents = text[:i].rstrip(), text[i:] + extents
        m = re.fullmatch(r"(.*?)\b([A-Za-z_]\w*)", text, re.DOTALL)
        if m is None:
            self.refuse(at, f"cannot read the __shared__ declaration of `{text}`")
        return m[1].strip(), m[2], extents

    def _static(
        self, at: int, i: int, name: str, kind: str, alignment: str, owner: Kernel | None
    ) -> str:
        if not self._in_function(at):
            self.refuse(at, f"declare __shared__ {name} inside a function")
        place = f"pymm_place_{at}_{i}"
        pointer = f"reinterpret_cast<const void*>({owner.pointer})" if owner else "nullptr"
        return (
            f'struct {place} {{ static const char* name() {{ return "{name}"; }} '
            f"static const void* owner() {{ return {pointer}; }} }}; "
            f"auto& {name} = pymm_sim::shared<{kind}, {alignment}, {place}>();"
        )

    def _dynamic(self, at: int, name: str, kind: str) -> str:
        if self._in_function(at):
            return f"auto* const {name} = pymm_sim::dynamic_shared<{kind}>();"
        return f"static const pymm_sim::DynamicShared<{kind}> {name}{{}};"

    def _in_function(self, at: int) -> bool:
        """Whether some open brace before `at` belongs to a function."""
        opened: list[int] = []
        for m in re.finditer(r"[{}]", self.code[:at]):
            if m.group() == "{":
                opened.append(m.start())
            elif opened:
                opened.pop()
        for brace in opened:
            head = self.code[statement_begin(self.code, brace) : brace]
            if (
                not re.match(r"\s*(inline\s+)?(namespace|extern|struct|class|union)\b", head)
                or "(" in head
            ):
                return True
        return False


def translate(text: str, architecture: int, unroll: int = 8) -> str:
    """C++ for `text`, CUDA C++ after the preprocessor. Raises Refused."""
    return (
        Translation(text, unroll).run()
        + f"\nstatic pymm_sim::SetArchitecture pymm_architecture{{{architecture}}};\n"
    )
