"""The recorded parameters are those of the Megatron-core that is installed."""

from record_megatron import RECORDED, recorded_again


def test_the_recorded_parameters_are_recorded_again_to_the_byte():
    assert recorded_again(RECORDED.read_text()) == RECORDED.read_text()
