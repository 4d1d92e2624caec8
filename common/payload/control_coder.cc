#include "common/payload/control_coder.h"

#include <zstd.h>

#include <memory>

namespace lockstep::payload {
namespace {

using Compressor = std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)>;
using Decompressor = std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)>;

// Level 1 still compresses literals, which the faster ones do not. A hash table of 64 entries, cleared for every block,
// finds the runs of a row that changed as a whole, and nothing else; long matches only, because a short one costs more
// than the literals it saves. The count of control bytes is in the block: the frame need not say it.
Compressor MakeCompressor() {
  Compressor made(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(made.get(), ZSTD_c_compressionLevel, 1);
  ZSTD_CCtx_setParameter(made.get(), ZSTD_c_strategy, ZSTD_fast);
  ZSTD_CCtx_setParameter(made.get(), ZSTD_c_hashLog, 6);
  ZSTD_CCtx_setParameter(made.get(), ZSTD_c_minMatch, 7);
  ZSTD_CCtx_setParameter(made.get(), ZSTD_c_contentSizeFlag, 0);
  return made;
}

}  // namespace

bool CompressControls(std::span<const uint8_t> controls, Bytes& frame) {
  thread_local const Compressor compressor = MakeCompressor();
  if (frame.size() < ZSTD_compressBound(controls.size())) frame.resize(ZSTD_compressBound(controls.size()));
  const size_t bytes = ZSTD_compress2(compressor.get(), frame.data(), frame.size(), controls.data(), controls.size());
  if (ZSTD_isError(bytes) || bytes >= controls.size()) return false;
  frame.resize(bytes);
  return true;
}

bool DecompressControls(ByteView frame, std::span<uint8_t> controls) {
  thread_local const Decompressor decompressor(ZSTD_createDCtx(), ZSTD_freeDCtx);
  return ZSTD_decompressDCtx(decompressor.get(), controls.data(), controls.size(), frame.data(), frame.size()) ==
         controls.size();
}

}  // namespace lockstep::payload
