#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes chat.json, which `tfcc generate --chat` reads, from a model's chat template (Jinja).

    chat_pieces.py TOKENIZER_CONFIG.json > chat.json      the file that holds "chat_template"; or a file of the template alone

The pieces are what the template puts around each message. A template whose text does not fall into such pieces is refused.
Needs jinja2.
"""
import json
import sys

SYSTEM, USER, ASSISTANT, MORE = "\x01system\x01", "\x01user\x01", "\x01assistant\x01", "\x01more\x01"


def pieces_of(template, **names):
    """The pieces as a dict; None without jinja2, SystemExit for a template that has none."""
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None
    compiled = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)

    def render(*messages, answer=False):
        return compiled.render(messages=[dict(role=r, content=c) for r, c in messages], add_generation_prompt=answer,
                               **{"bos_token": "", "eos_token": "", **names})

    def around(text, content):
        before, found, after = text.partition(content)
        if not found or content in after:
            raise SystemExit("the chat template does not show each message once; write chat.json by hand (docs/generate.md)")
        return [before, after]

    one = render(("user", USER))
    two = render(("user", USER), ("assistant", ASSISTANT))
    three = render(("user", USER), ("assistant", ASSISTANT), ("user", MORE))
    user = around(three[len(two):], MORE)
    assistant = around(two[len(one):], ASSISTANT)
    head = one.removesuffix(user[0] + USER + user[1])
    with_system = render(("system", SYSTEM), ("user", USER))
    own = around(with_system.removesuffix(user[0] + USER + user[1]), SYSTEM)
    out = dict(start="", default_system=head, system=own, user=user, assistant=assistant, answer=render(("user", USER), answer=True)[len(one):])
    whole = render(("system", SYSTEM), ("user", USER), ("assistant", ASSISTANT), ("user", MORE), answer=True)
    again = own[0] + SYSTEM + own[1] + user[0] + USER + user[1] + assistant[0] + ASSISTANT + assistant[1] + user[0] + MORE + user[1] + out["answer"]
    if whole != again or not two.startswith(one) or not three.startswith(two):
        raise SystemExit("the chat template does not fall into pieces; write chat.json by hand (docs/generate.md)")
    return out


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__.strip())
    with open(sys.argv[1], encoding="utf-8") as f:
        text = f.read()
    names = {}
    if sys.argv[1].endswith(".json"):
        config = json.loads(text)
        text = config.get("chat_template") or sys.exit(f"{sys.argv[1]}: holds no chat_template")
        token = lambda t: t.get("content", "") if isinstance(t, dict) else t or ""
        names = {n: token(config.get(n)) for n in ("bos_token", "eos_token")}
    pieces = pieces_of(text, **names)
    if pieces is None:
        raise SystemExit("chat_pieces.py needs jinja2: pip install jinja2")
    print(json.dumps(pieces, indent=1))


if __name__ == "__main__":
    main()
