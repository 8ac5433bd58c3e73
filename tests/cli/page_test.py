#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `tfcc inspect --html`: everything of the file is on it, and nothing of the file is markup.

    page_test.py TFCC

Pages are parsed and counted against `inspect --json` and trace.json. Names are made hostile in a graph text, in an ONNX
file and in the file's own name; the page must hold them as text alone. Texts are damaged: each file gives a page or one line.
"""
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from tfcc_file import text_section, with_texts

MODELS = Path(__file__).resolve().parent.parent / "models"
HOSTILE = ['</script><script>alert(1)</script>', '"><img src=x onerror=alert(1)>', "'><svg onload=alert(1)>", "</title></style><b>", "&lt;i&gt;", "<!--"]
MAY_STAND_OPEN = {"meta", "link", "br", "td", "th", "li", "p"}  # by the rules of HTML


class Page(HTMLParser):
    """Counts of elements by tag and class, attributes that matter, and all text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.classes, self.ids, self.links, self.text = Counter(), Counter(), Counter(), [], []
        self.attributes, self.open, self.problems = set(), [], []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag in self.open]

    goes_on = False

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        if tag == "wbr":  # where a name may be broken: its text goes on
            self.goes_on = True
            return
        self.goes_on = False
        if tag not in MAY_STAND_OPEN and not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)
        for key, value in attributes:
            self.attributes.add(key)
            if key == "class":
                for name in value.split():
                    self.classes[f"{tag}.{name}"] += 1
            elif key == "id":
                self.ids[value] += 1
            elif key == "href":
                self.links.append(value)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)

    def handle_endtag(self, tag):
        self.goes_on = False
        if tag in MAY_STAND_OPEN:
            return
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes something else")

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            if self.goes_on and self.text:
                self.text[-1] += data
            else:
                self.text.append(data)
        self.goes_on = False


class Tester:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.failures = binary, folder, 0

    def expect(self, where, what, got, wanted):
        if got != wanted:
            print(f"{where}: {what}: {got!r}, expected {wanted!r}", file=sys.stderr)
            self.failures += 1

    def tfcc(self, *words):
        done = subprocess.run([self.binary, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise SystemExit(f"tfcc {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def has(self, target):
        model = MODELS / "bert-eager" / "model.onnx"
        done = subprocess.run([self.binary, "compile", model, "-o", "probe.tfcc", "--target", target, "-q"], cwd=self.folder, capture_output=True)
        return done.returncode == 0

    def page(self, file, *flags):
        self.tfcc("inspect", file, *flags, "--html=page.html")
        text = (self.folder / "page.html").read_text(encoding="utf-8")
        return Page(text), text

    def check_closed(self, where, page, text):
        """Nothing but our own markup, and nothing from elsewhere."""
        self.expect(where, "markup", page.problems, [])
        self.expect(where, "script elements", page.tags["script"], 1)
        for tag in ("img", "iframe", "object", "embed", "base", "form", "image", "use", "audio", "video"):
            self.expect(where, f"<{tag}>", page.tags[tag], 0)
        self.expect(where, "handlers", [a for a in page.attributes if a.startswith("on")], [])
        self.expect(where, "sources", page.attributes & {"src", "srcset", "action", "background", "data"}, set())
        self.expect(where, "links that leave the page", [a for a in page.links if not a.startswith("#") and a != "data:,"], [])
        self.expect(where, "links into nothing", sorted({a for a in page.links if a.startswith("#") and a[1:] not in page.ids}), [])
        self.expect(where, "ids given twice", [i for i, n in page.ids.items() if n > 1], [])
        self.expect(where, "policy", "default-src 'none'" in text.split("<title>")[0], True)
        self.expect(where, "imports of the style", "@import" in text or "url(" in text, False)
        self.expect(where, "control characters", [c for c in text if ord(c) < 32 and c not in "\n\t"], [])

    def check_counts(self, where, file, flags, page):
        j = json.loads(self.tfcc("inspect", file, *flags, "--json"))
        sources = tuple(f"kernels/{p['name']}/" for p in j["plans"])
        plans, texts = j["plans"], [t["name"] for t in j["texts"]]
        counts = {
            "tr.input": len(j["inputs"]), "tr.output": len(j["outputs"]), "tr.symbol": len(j["symbols"]), "tr.target": len(j["targets"]),
            "li.check": len(j["checks"]), "li.flag": len(j["flags"]), "tr.weight": j["weights"]["count"], "li.text": len(texts), "span.section": len(j["sections"]),
            "section.plan": len(plans),
            "tr.pass-run": len(j["report"]["passes"]), "li.miss": sum(len(p["misses"]) for p in j["report"]["passes"]),
            "tr.launch": sum(len(b["launches"]) for p in plans for b in p["buckets"]),
            "tr.bucket": sum(len(p["buckets"]) for p in plans if len(p["buckets"]) > 1),
            "details.kernel": sum(len(p["kernels"]) for p in plans), "pre.source": sum(t.startswith(sources) for t in texts),
            "g.buffer": sum(b["class"] == "arena" for p in plans for b in p["buffers"]), "svg.memory": len(plans),
        }
        if "trace.json" in texts:
            trace = json.loads(self.tfcc("inspect", file, "--text", "trace.json"))
            ops = [o for g in trace["graphs"].values() for o in g]
            counts["tr.op"] = len(ops)
            counts["li.from"] = sum(len(o["nodes"]) for o in ops)
            counts["li.vanished"] = len(plans) * sum(not n["ops"] for n in trace["nodes"])
        else:
            counts["tr.op"] = 0
        for what, wanted in counts.items():
            self.expect(where, what, page.classes[what], wanted)

    def check(self, file, *flags):
        where = " ".join((file, *flags))
        page, text = self.page(file, *flags)
        self.check_closed(where, page, text)
        self.check_counts(where, file, flags, page)
        if not flags and json.loads(self.tfcc("inspect", file, "--json"))["generates"]:
            self.check(file, "--generation")
        return page, text


def check_damage(t, file):
    """Texts that were altered: found by their checksum, or, signed again, a page or one line, never anything else."""
    whole = (t.folder / file).read_bytes()
    _, begin, end = text_section(whole)
    texts = whole[begin:end]

    def outcome(data):
        (t.folder / "damaged.tfcc").write_bytes(data)
        (t.folder / "page.html").unlink(missing_ok=True)
        done = subprocess.run([t.binary, "inspect", "damaged.tfcc", "--html=page.html"], cwd=t.folder, capture_output=True, text=True, errors="replace", timeout=60)
        wrote = (t.folder / "page.html").exists()
        one_line = done.returncode == 1 and done.stderr.count("\n") == 1 and done.stderr.startswith("tfcc: ") and not wrote
        return done, wrote, one_line or (done.returncode == 0 and wrote and not done.stderr)

    middle = (begin + end) // 2
    done, wrote, fine = outcome(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1:])
    t.expect("an altered text", "exit, page, one line", (done.returncode, wrote, fine), (1, False, True))
    for old, new in ((b'"schema":1', b'"schema":7'), (b'"nodes":[{', b'"modes":[{'), (b'"nodes":[', b'"nodes":9'), (b'"passes":[', b'"passes":7'), (b'"ops":[', b'"ops":7')):
        assert old in texts
        done, wrote, fine = outcome(with_texts(whole, texts.replace(old, new)))
        t.expect(f"{old} as {new}", "refused in one line", (done.returncode, fine), (1, True))
    chance = random.Random(1)
    for _ in range(60):
        data = bytearray(texts)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.choice(b'"\\{}[]():,%@0987 \n<\xff\x00')
        done, wrote, fine = outcome(with_texts(whole, bytes(data)))
        t.expect("texts altered at random", f"a page or one line: {done.returncode} {done.stderr}", fine, True)


def hostile_graph():
    quoted = ["\"" + n.replace("\"", "\\\"") + "\"" for n in HOSTILE + ["two\\nlines\\x1b[31m\\xff"]]
    names = [f"%{q}" for q in quoted]
    lines = [f"graph @{quoted[0]}({names[0]}: f32[{quoted[4]},8]) symbols({quoted[4]} = {quoted[0]}.0 in 1..) {{"]
    for before, name in zip(names, names[1:]):
        lines.append(f"  {name} = softmax({before}) : f32[{quoted[4]},8]")
    return "\n".join(lines + [f"  return {quoted[3]} = {names[-1]}, y = {names[1]}", "}", ""])


def main():
    with tempfile.TemporaryDirectory() as name:
        t = Tester(Path(sys.argv[1]).resolve(), Path(name))
        targets = [target for target in ("cpu", "sm_80") if t.has(target)]
        if not targets:
            return 77
        for model in ("bert-eager", "bert-dynamo-18", "llama", "bert-quantised"):
            t.tfcc("compile", MODELS / model / "model.onnx", "-o", "m.tfcc", "--target", ",".join(targets), "-q")
            page, _ = t.check("m.tfcc")
            t.expect(model, "graphs drawn", page.tags["svg"] > 2 * len(targets), True)
            t.expect(model, "templates", page.classes["details.template"] >= 3 * len(targets), True)
            t.expect(model, "parts of the model", page.classes["details.part"] >= 3 * len(targets), True)
        t.tfcc("compile", MODELS / "bert-eager" / "model.onnx", "-o", "none.tfcc", "--target", targets[0], "-q", "--passes=")
        t.check("none.tfcc")
        t.tfcc("compile", MODELS / "bert-eager" / "model.onnx", "-o", "stripped.tfcc", "--target", targets[0], "-q", "--strip")
        page, text = t.check("stripped.tfcc")
        t.expect("stripped.tfcc", "says what is missing", "compiled with <code>--strip</code>" in text, True)

        t.tfcc("compile", MODELS / "albert" / "model.onnx", "-o", "whole.tfcc", "--target", targets[0], "-q")
        check_damage(t, "whole.tfcc")

        graph = t.folder / "g<img src=x onerror=alert(1)>\".tfir"
        graph.write_text(hostile_graph())
        t.tfcc("compile", graph, "-o", "a\"><b>.tfcc", "--target", targets[0], "-q", "--passes=")
        page, text = t.check("a\"><b>.tfcc")
        for hostile in HOSTILE:
            t.expect("hostile graph", f"{hostile} is text", hostile in "".join(page.text), True)

        onnx = (MODELS / "bert-eager" / "model.onnx").read_bytes()
        node = b"/model/encoder/layer.0/attention/self/Softmax"
        at = onnx.find(node + b"\x22")  # a node's name, before its operator
        t.expect("bert-eager", "a node to rename", at > 0, True)
        hostile = HOSTILE[0].ljust(len(node), "/")
        (t.folder / "h.onnx").write_bytes(onnx[:at] + hostile.encode() + onnx[at + len(node):])
        t.tfcc("compile", "h.onnx", "-o", "h.tfcc", "--target", targets[0], "-q")
        page, text = t.check("h.tfcc")
        t.expect("hostile node", "its name is text", hostile in page.text, True)
    return 1 if t.failures else 0


if __name__ == "__main__":
    sys.exit(main())
