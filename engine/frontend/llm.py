"""`LLM`: generation for programs without an event loop.

    llm = LLM(model=DIR, tensor_parallel_size=2)
    for output in llm.generate(["one", "two"], SamplingParams(max_tokens=16)):
        print(output.text)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from itertools import count
from typing import Any

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.frontend.arguments import config_of
from engine.frontend.client import end_client
from engine.frontend.service import Service
from engine.frontend.session import UtilityResult
from engine.frontend.text.input_processor import Prompt
from engine.frontend.text.tokenizer import transformers_tokenizer
from engine.messages import RequestOutput, SamplingParams
from engine.ports import Ports

#: How long one wait for outputs may last before time-outs are looked at; the client itself looks more often.
WAIT_S = 1.0


class LLM:
    """One engine in the background, used from one thread. A context manager; `shutdown` otherwise.

    `LLM(model=DIR, tensor_parallel_size=2, ...)` takes the fields of EngineConfig and vLLM's flat names of them
    (`engine/frontend/arguments.py`), or `config=`. Raises ConfigError for what cannot be, StartupError.
    """

    def __init__(self, model: str = "", *, config: EngineConfig | None = None, ports: Ports | None = None,
                 **fields: Any) -> None:
        if config is not None and (model or fields):
            raise ConfigError(f"config is given beside {', '.join(['model'] * bool(model) + list(fields))}; "
                              "say it once, in the config")
        self._service = Service(config or config_of(str(model), fields), asyncio_mode=False, ports=ports)
        self.config = self._service.config
        self.client = self._service.client
        weakref.finalize(self, end_client, self.client).atexit = False  # the client sees to the program's end itself
        self._ids = count()

    def generate(self, prompts: Prompt | Sequence[Prompt],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 on_progress: Callable[[int, int], None] | None = None, *,
                 use_tqdm: bool = False, priority: Sequence[int] | None = None) -> list[RequestOutput]:
        """-> one finished output per prompt, in their order. Text, token ids, or lists of either.

        Raises BadRequestError before anything is sent if one of them cannot be served; if a request fails later
        the others are aborted and its error is raised. `on_progress(done, all)` is called as they finish;
        `use_tqdm` shows a bar on stderr. `priority`: one for each prompt, the lowest is served first.
        """
        many = _as_list(prompts)
        priorities = list(priority) if priority is not None else [0] * len(many)
        params = list(sampling_params) if isinstance(sampling_params, Sequence) else [sampling_params] * len(many)
        if len(params) != len(many):
            raise ValueError(f"{len(many)} prompts need as many sampling_params, got {len(params)}")
        if len(priorities) != len(many):
            raise ValueError(f"{len(many)} prompts need as many priorities, got {len(priorities)}")
        names = [f"generate-{next(self._ids)}" for _ in many]
        asked = list(zip(names, many, params, priorities, strict=True))
        for request in asked:
            self._service.inputs.process(*request)
        with _bar(len(many)) if use_tqdm else nullcontext() as bar:
            def done(finished: int) -> None:
                if bar is not None:
                    bar.update()
                if on_progress is not None:
                    on_progress(finished, len(many))

            return self._finished(asked, done)

    def _finished(self, asked: list[tuple[str, Prompt, SamplingParams | None, int]],
                  done: Callable[[int], None]) -> list[RequestOutput]:
        waiting = dict(enumerate(asked))
        streams: dict[int, Any] = {}
        outputs: dict[int, RequestOutput] = {}
        try:
            while len(outputs) < len(asked):
                while waiting and len(streams) - len(outputs) < self.config.limits.max_requests:
                    place = next(iter(waiting))
                    streams[place] = self._service.start(*waiting.pop(place))
                self.client.wait(WAIT_S)
                for place, stream in streams.items():
                    output = stream.take() if place not in outputs else None
                    if output is not None and output.finished:
                        outputs[place] = output
                        done(len(outputs))
        except BaseException:
            for place in streams:
                if place not in outputs:
                    self._service.abort(asked[place][0])
            raise
        return [outputs[place] for place in range(len(asked))]

    def chat(self, messages: Sequence[Any], sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
             *, chat_template: str | None = None, add_generation_prompt: bool = True,
             use_tqdm: bool = False) -> list[RequestOutput]:
        """Answer a conversation, or a list of them: messages of "role" and "content", put into words by the
        tokenizer's template, or by `chat_template`.

        Raises ConfigError where there is no template, BadRequestError as `generate` does.
        """
        tokenizer = self.get_tokenizer()
        if chat_template is None and not tokenizer.chat_template:
            raise ConfigError(f"{self.config.tokenizer_directory}: the tokenizer has no chat template; "
                              "give one: chat(messages, chat_template=...)")
        many = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts: list[Prompt] = []
        for conversation in many:
            text = tokenizer.apply_chat_template(list(conversation), chat_template=chat_template, tokenize=False,
                                                 add_generation_prompt=add_generation_prompt)
            # The template has said what stands in front: the tokenizer must not say it again.
            prompts.append({"prompt": text, "prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)})
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def get_tokenizer(self) -> Any:
        """The one of transformers, as vLLM gives it. Raises ConfigError where none can be loaded."""
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Any:
        return transformers_tokenizer(self.config.tokenizer_directory)

    def call_utility(self, method: str, *args: Any) -> Any:
        """Raises ValueError for what the core refuses, EngineDeadError, UnroutableError, RequestTimeoutError."""
        results: list[UtilityResult] = []
        self._service.utility(method, args, results.append)
        while not results:
            self.client.wait(WAIT_S)
        answer = results[0]
        if answer.error is not None:
            raise answer.error
        if answer.failure is not None:
            raise ValueError(answer.failure)
        return answer.result

    def check_health(self) -> None:
        """Raises EngineDeadError where the engine is dead or makes no progress."""
        self.client.check_health()

    @property
    def dead_cores(self) -> dict[str, str]:
        """Of several cores those that are dead, each with the reason."""
        return self.client.dead_cores

    def shutdown(self) -> None:
        """End the engine. Nothing is left behind."""
        self.client.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()


def _bar(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="prompts", unit="prompt", dynamic_ncols=True)


def _as_list(prompts: Any) -> list[Any]:
    """One prompt or many: a list of whole numbers is one."""
    if isinstance(prompts, str | dict) or (prompts and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)


