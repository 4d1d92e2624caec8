// What the fuzz targets share (README.md). A target is one file of targets/ that defines Seeds() and TestInput(); it
// becomes a libFuzzer program, and a test that replays its corpus.
//
// For one thread. A broken rule ends the process: that is what a fuzzer looks for.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/document_testing.h"
#include "common/base/status.h"

namespace lockstep::fuzz {

// ---- What a target defines

// Inputs to start from, made by the encoders or taken from a FORMAT.md. The decoder takes at least one of them.
std::vector<Bytes> Seeds();

// Gives `input` to the decoder, as it is and with its checksums put right, and checks what must hold either way.
void TestInput(ByteView input);

// ---- What it calls

// Ends the process, naming rule and input, unless `holds`.
void Require(bool holds, const char* rule, const char* file, int line);
#define LS_FUZZ_RULE(condition) ::lockstep::fuzz::Require((condition), #condition, __FILE__, __LINE__)

// The decoder refused its input: with one of the codes that its header names, and a sentence that people, logs and
// protos can take.
void CheckRefusal(const Status& status, std::initializer_list<ErrorCode> codes);

// The decoder took its input. `steps`: properties of what it made of the input; a change or two gives a seed one of
// them. The fuzzer goes on from inputs that hold steps which no other held together.
using Steps = std::vector<bool>;
void Accepted(ByteView input, const Steps& steps);

Bytes Copy(ByteView bytes);

// The path of a file, always the same, that holds `text`.
std::string FileOf(ByteView text);

// ---- What its programs call

// TestInput, and remembers the input for Require.
void Run(ByteView input);

// The inputs of corpus/TARGET.txt: one a line, in hexadecimal; '#' begins a line of comment.
std::vector<Bytes> CorpusInputs(const std::string& path);

struct Outcomes {
  uint64_t accepted = 0;
  uint64_t refused = 0;
};
const Outcomes& OutcomesSoFar();

// Defined by each program. `steps`: those that hold, as bits.
void OnAccepted(ByteView input, uint32_t steps);

}  // namespace lockstep::fuzz
