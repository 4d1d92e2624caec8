"""A rank asks a receiver for the model's tensors (raas_receiver/engine/ranks/FORMAT.md)."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fake_receiver import ATTACHED

import lockstep
from lockstep.core.peer import LINE
from lockstep.engine._connection import Connection, RefusedError, ask_layout
from lockstep.engine._describe import description_of
from lockstep.engine._memory import Location
from lockstep.engine._options import DescribeOptions
from lockstep.engine._parameters import parameters_of
from lockstep.engine._recorder import TensorForm

DIGEST = "0123456789abcdef" * 2


@pytest.fixture
def answer(receiver):
    """What a rank that asks ``receiver`` gets; it gives up when the test ends."""
    with Connection(str(receiver.path)) as connection, ThreadPoolExecutor(1) as executor:
        connection.connect()
        yield executor.submit(ask_layout, connection, "actor")
        connection.shutdown()


def body(tensors, **changed) -> bytes:
    return json.dumps({"digest": DIGEST, "tensors": tensors, **changed}).encode()


def test_a_rank_gets_the_tensors_in_their_order(receiver, answer):
    question = receiver.accept_question()
    assert question.said == {"peer": LINE, "model": "actor"}
    question.answer(body({"z": ["BF16", [3, 4]], "a.b": ["F8_E4M3", []], "packed": ["F4", [2, 32]]}))
    assert answer.result() == (
        DIGEST,
        [
            TensorForm("z", torch.bfloat16, (3, 4)),
            TensorForm("a.b", torch.float8_e4m3fn, ()),
            TensorForm("packed", torch.float4_e2m1fn_x2, (2, 16)),
        ],
    )


def test_a_layout_of_many_tensors_arrives_whole(receiver, answer):
    names = [f"model.layers.{number}.weight".ljust(200, "x") for number in range(20_000)]
    receiver.accept_question().answer(body({name: ["F32", [1]] for name in names}))
    assert [form.name for form in answer.result()[1]] == names


def test_a_rank_of_a_model_that_is_not_followed_is_refused(receiver, answer):
    receiver.accept_question().refuse("no model actor is followed here")
    with pytest.raises(RefusedError, match="does not take this rank: no model actor is followed here"):
        answer.result()


def test_a_receiver_that_goes_first_is_unavailable(receiver, answer):
    receiver.accept_question().close()
    with pytest.raises(lockstep.UnavailableError):
        answer.result()


@pytest.mark.parametrize(
    ("sent", "wrong"),
    [
        (b"{", "Expecting"),
        (b"\xff\xfe{", "codec"),
        (b"[" * 200_000, "recursion"),
        (b"[]", 'no object of "digest" and "tensors"'),
        (body({}, speed=1), 'no object of "digest" and "tensors"'),
        (body({}, digest="f00"), '"digest" is not 32 hexadecimal digits'),
        (body({}, digest=7), '"digest" is not 32 hexadecimal digits'),
        (body([]), '"tensors" is not an object'),
        (b'{"digest": "%s", "tensors": {"w": ["F32", []], "w": ["F32", []]}}' % DIGEST.encode(), "one key twice"),
        *(
            (body({"w": form}), "tensor 'w' does not have a dtype of safetensors and a shape")
            for form in (
                {},
                ["F32"],
                ["float32", [1]],
                [7, [1]],
                [["F32"], [1]],
                ["F32", 1],
                ["F32", [-1]],
                ["F32", [1.0]],
                ["F32", [True]],
                ["F32", [1 << 45]],
                ["F32", [1] * 17],
            )
        ),
    ],
)
def test_an_answer_that_is_no_layout_is_refused_with_what_is_wrong(receiver, answer, sent, wrong):
    receiver.accept_question().answer(sent)
    with pytest.raises(lockstep.ProtocolError, match=f"sent LAYOUT, in which .*{wrong}"):
        answer.result()


def test_another_message_is_no_layout(receiver, answer):
    receiver.accept_question().answer(b"", kind=ATTACHED)
    with pytest.raises(lockstep.ProtocolError, match="sent ATTACHED, not LAYOUT"):
        answer.result()


def test_descriptors_that_come_with_a_layout_are_not_taken(receiver, answer):
    question = receiver.accept_question()
    before = os.listdir("/proc/self/fd")
    with open(os.devnull) as file:
        question.answer(body({}), fds=[file.fileno()])
    assert answer.result() == (DIGEST, []) and len(os.listdir("/proc/self/fd")) == len(before) - 1  # the question's


def test_a_dtype_that_pytorch_has_not_is_named(receiver, answer):
    receiver.accept_question().answer(body({"w": ["F6_E2M3", [4]]}))
    with pytest.raises(lockstep.BadDataError, match='"w".*no dtype for F6_E2M3'):
        answer.result()


def test_a_description_says_the_layout_that_it_was_made_for():
    options = DescribeOptions()
    parameters = parameters_of(torch.nn.Linear(2, 2), options)
    places = [Location(0, 0), Location(0, 256)]
    assert description_of(options, parameters, places, [4096], DIGEST)["layout"] == DIGEST
    assert "layout" not in description_of(options, parameters, places, [4096])
