// Recovery: serving what an earlier agent left in a run's buffer.
#pragma once

#include "trainer_agent/publish/published_run.h"

namespace lockstep::publish {

// Hashes each committed half again, drops one that differs from its recorded manifest, makes the delta between the two
// again, and serves both. Returns the newest version, 0 for none. Call before anybody else has the run.
Version RecoverRun(PublishedRun& run);

}  // namespace lockstep::publish
