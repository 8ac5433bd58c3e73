# SPDX-License-Identifier: Apache-2.0
"""Generator over the C API."""
import queue
import threading
import weakref
from ctypes import POINTER, byref, c_int32, c_uint64, c_void_p
from typing import NamedTuple, Tuple

from tfcc import _library
from tfcc._library import Error, library
from tfcc._library import whole

_ENDS = ("running", "stop", "length", "context", "cancelled", "failed")


class Generated(NamedTuple):
    """What has been generated for a prompt. `end` is "running", "stop", "length", "context", "cancelled" or "failed"."""
    tokens: Tuple[int, ...]
    end: str
    first_token_ms: float
    total_ms: float
    log_probabilities: Tuple[float, ...] = ()


class Generator:
    """Answers many prompts at once, each as if it were alone. Any thread may use it.

    generator = tfcc.load("llama.tfcc").generator()
    generator.generate([1, 2, 3], max_tokens=20).tokens         # waits
    for token in generator.stream([1, 2, 3]): ...               # one after the other
    id = generator.submit([1, 2, 3]); generator.wait(id)        # many at a time
    """

    def __init__(self, model, max_context=0, max_sequences=16, prompt_chunk=512, cache_bytes=0, prefix_sharing=True, literal=False,
                 run_ahead=None, swap_bytes=None):
        options = _library.GeneratorOptions()
        library().tfcc_generator_options_init(byref(options))
        options.max_context = whole("max_context", max_context, 0, 2**62)
        options.max_sequences = whole("max_sequences", max_sequences, 1, 2**62)
        options.prompt_chunk = whole("prompt_chunk", prompt_chunk, 1, 2**62)
        options.cache_bytes = whole("cache_bytes", cache_bytes, 0, 2**62)
        options.prefix_sharing, options.literal = bool(prefix_sharing), bool(literal)
        options.run_ahead = -1 if run_ahead is None else bool(run_ahead)
        options.swap_bytes = 2**64 - 1 if swap_bytes is None else whole("swap_bytes", swap_bytes, 0, 2**62)
        handle = c_void_p()
        library().tfcc_generator_create(model._handle, byref(options), byref(handle))
        self._handle = handle
        self._model = model  # whose log it may call
        self._callbacks, self._lock = {}, threading.Lock()  # of sequences that may still call them, by number
        self._free = weakref.finalize(self, library().tfcc_generator_free, handle)

    def submit(self, prompt, max_tokens=256, stop_ids=(), repetition_penalty=1.0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, on_token=None,
               log_probabilities=False):
        """Asks for an answer to the ids of `prompt`, and returns the sequence's number at once.

        max_tokens, stop_ids  where the answer ends; stop ids are not part of it
        temperature           0: the likeliest token each time; else one is drawn, of the top_k likeliest, of those that make up
                              top_p, of those at least min_p as likely as the first; the same for the same seed
        log_probabilities     Generated has that of each token by the model alone, before penalty and temperature
        on_token              called with each id by a thread of the sequence; what it raises cancels the sequence, and wait() raises it
        """
        ids = (c_int32 * len(prompt))(*(whole("an id of the prompt", i, -2**31, 2**31 - 1) for i in prompt))
        stops = (c_int32 * len(stop_ids))(*(whole("a stop id", i, -2**31, 2**31 - 1) for i in stop_ids))
        o = _library.GenerateOptions()
        library().tfcc_generate_options_init(byref(o))
        o.max_tokens = whole("max_tokens", max_tokens, 0, 2**62)
        o.stop_count, o.stop_ids = len(stop_ids), stops
        o.repetition_penalty, o.temperature, o.top_p, o.min_p = repetition_penalty, temperature, top_p, min_p
        o.top_k = whole("top_k", top_k, 0, 2**31 - 1)
        o.seed = whole("seed", seed, 0, 2**64 - 1)
        o.log_probabilities = bool(log_probabilities)
        raised = []
        if on_token is not None:
            def call(token, _):
                try:
                    on_token(token)
                    return 0
                except BaseException as e:  # none may cross the library
                    raised.append(e)
                    return 1
            o.on_token = _library.OnToken(call)
        number = c_uint64()
        with self._lock:  # before anybody can wait for it
            library().tfcc_generator_submit(self._handle, ids, len(prompt), byref(o), byref(number))
            self._callbacks[number.value] = (o.on_token, raised)
        return number.value

    def _result(self, function, id):
        generated = POINTER(_library.Generated)()
        function(self._handle, whole("id", id, 0, 2**64 - 1), byref(generated))
        g = generated.contents
        logs = tuple(g.log_probabilities[:g.count]) if g.log_probabilities else ()
        out, error = Generated(tuple(g.tokens[:g.count]), _ENDS[g.end], g.first_token_ms, g.total_ms, logs), g.error
        library().tfcc_generated_free(generated)
        return out, error.decode(errors="replace")

    def poll(self, id):
        """What there is so far."""
        return self._result(library().tfcc_generator_poll, id)[0]

    def wait(self, id):
        """The answer, once it has ended; the sequence is forgotten. Raises what its on_token raised, or why it failed."""
        out, error = self._result(library().tfcc_generator_wait, id)
        with self._lock:
            _, raised = self._callbacks.pop(id, (None, []))
        if raised:
            raise raised[0]
        if out.end == "failed":
            raise Error("invalid_argument", error)
        return out

    def cancel(self, id):
        """Ends a sequence soon."""
        library().tfcc_generator_cancel(self._handle, whole("id", id, 0, 2**64 - 1))

    def generate(self, prompt, **options):
        """The answer to one prompt; options as for submit()."""
        return self.wait(self.submit(prompt, **options))

    def stream(self, prompt, **options):
        """The ids of an answer, one after the other; options as for submit(), but on_token. Leaving the loop cancels it."""
        tokens = queue.SimpleQueue()
        id = self.submit(prompt, on_token=tokens.put, **options)

        def end():
            try:
                tokens.put(self.wait(id))
            except Exception as e:
                tokens.put(e)
        waiting = threading.Thread(target=end, daemon=True)
        waiting.start()
        try:
            while True:
                got = tokens.get()
                if isinstance(got, Exception):
                    raise got
                if isinstance(got, Generated):
                    return
                yield got
        finally:
            self.cancel(id)
            waiting.join()

    def stats(self):
        """Sequences waiting and running, tokens computed, pages of the cache."""
        s = _library.GeneratorStats()
        library().tfcc_generator_get_stats(self._handle, byref(s))
        return {name: getattr(s, name) for name, _ in s._fields_}

    @property
    def max_context(self):
        return library().tfcc_generator_max_context(self._handle)

    @property
    def vocabulary_size(self):
        return library().tfcc_generator_vocabulary_size(self._handle)
