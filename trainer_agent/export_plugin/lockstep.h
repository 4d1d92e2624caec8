/* Lockstep's export plugin: how a trainer process hands its weights to the trainer_agent on the same host.
 *
 * One lockstep_model per (process, model). Every rank that writes opens the model with the same tensors; the agent
 * commits a version when all ranks have committed it. Per step, on each rank:
 *
 *     lockstep_begin(model, version, &data);    waits, if at all, for the tail of the previous diff
 *     ... write the bytes of some tensors at data + tensor.offset, or use lockstep_write() ...
 *     lockstep_ranges_done(model, ranges, n);   as they become complete, in any order, each byte once over all ranks
 *     lockstep_commit(model);                   this rank is done
 *
 * Memory: `data` is the data section of a half in shared memory, owned by the library, valid until commit, abort or
 * close.
 *
 * Threads: calls on one lockstep_model must not overlap; different models are independent. The library starts no
 * threads.
 *
 * Errors: every function answers LOCKSTEP_OK or a code below; lockstep_last_error() has the sentence. Nothing is
 * thrown, nothing calls exit, SIGPIPE is never raised.
 *
 * An agent that is restarted is reconnected to within `reconnect_timeout_ms`, inside the call that noticed, and what
 * this rank had told it is told again. Its buffers are handed back to it, so the run goes on.
 */
#ifndef LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_H_
#define LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_ABI_VERSION 1

/* The numbers are those of lockstep::ErrorCode (common/base/status.h). */
enum {
  LOCKSTEP_OK = 0,
  LOCKSTEP_BAD_DATA = 3,
  LOCKSTEP_PROTOCOL = 5,
  LOCKSTEP_NOT_FOUND = 6,
  LOCKSTEP_STATE = 7,
  LOCKSTEP_UNAVAILABLE = 8,
  LOCKSTEP_DEADLINE = 9,
  LOCKSTEP_ABORTED = 10,
  LOCKSTEP_PERMISSION = 12,
  LOCKSTEP_RESOURCE_EXHAUSTED = 13,
  LOCKSTEP_IO = 14,
  LOCKSTEP_INTERNAL = 15,
};

/* One tensor of tensors_meta, in HuggingFace terms. */
typedef struct lockstep_tensor {
  const char* name;      /* UTF-8, unique */
  const char* dtype;     /* as safetensors names it: "BF16", "F32", "F8_E4M3", ... */
  const uint64_t* shape; /* `rank` dimensions; may be null when rank is 0 */
  uint32_t rank;
  uint64_t offset; /* bytes into the data section; tensors lie back to back, each aligned to its element size */
} lockstep_tensor;

typedef struct lockstep_open_options {
  uint32_t abi_version;    /* LOCKSTEP_ABI_VERSION */
  const char* socket_path; /* the agent's unix socket */
  const char* model;       /* [A-Za-z0-9._-]{1,128} */
  const lockstep_tensor* tensors;
  size_t tensor_count;
  uint32_t rank;                 /* of this writer, below `ranks` */
  uint32_t ranks;                /* writers on this host; 1 for a plain trainer */
  uint32_t connect_timeout_ms;   /* 0: 10,000 */
  uint32_t reconnect_timeout_ms; /* 0: 60,000 */
  uint32_t call_timeout_ms;      /* how long a call may wait for the agent's answer; 0: 600,000 */
  const char* run; /* null: a new run. 32 hex digits: go on in this run, which the agent still holds; so does a rank
                      that takes the place of one that died while the others live */
} lockstep_open_options;

typedef struct lockstep_model lockstep_model;

typedef struct lockstep_range {
  uint64_t offset; /* bytes into the data section */
  uint64_t bytes;
} lockstep_range;

/* Connects, describes the model and maps the agent's buffers. On failure *model is null and
 * lockstep_last_error(NULL) has the sentence (per thread). */
int lockstep_open(const lockstep_open_options* options, lockstep_model** model);

/* Starts writing `version`, from 1 to 2^56 - 1, which must be greater than every version of the run. On success *data
 * is the start of the data section to fill. LOCKSTEP_STATE: not greater, or this rank is already writing. */
int lockstep_begin(lockstep_model* model, uint64_t version, void** data);

/* Copies a whole tensor (by its position in `tensors`) into place and tells its range. `bytes` must be the tensor's
 * size. */
int lockstep_write(lockstep_model* model, size_t tensor, const void* source, size_t bytes);

/* Tells that these bytes of the version being written are final. A byte told twice is an error at once or at commit. */
int lockstep_ranges_done(lockstep_model* model, const lockstep_range* ranges, size_t count);

/* This rank is done with the version. Answers when the agent has recorded it; with the last rank's commit the version
 * is whole and will be served. LOCKSTEP_BAD_DATA: bytes are missing (the error names the first tensor); the version is
 * gone. LOCKSTEP_ABORTED: another rank vanished or aborted; the version is gone. In both cases the next begin works. */
int lockstep_commit(lockstep_model* model);

/* Gives the version being written up, for all ranks. */
int lockstep_abort(lockstep_model* model);

/* Facts that stay valid until close. */
const char* lockstep_run(const lockstep_model* model);            /* 32 hex digits */
uint64_t lockstep_committed_version(const lockstep_model* model); /* newest this rank knows of; 0 for none */
uint64_t lockstep_data_bytes(const lockstep_model* model);

/* A version being written is aborted. Null is fine. */
void lockstep_close(lockstep_model* model);

/* The sentence of the last failure of a call on `model`, or of this thread's last lockstep_open for NULL. Valid until
 * the next call. Never null. */
const char* lockstep_last_error(const lockstep_model* model);

/* "0.1.0" */
const char* lockstep_version(void);

#ifdef __cplusplus
}
#endif

#endif /* LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_H_ */
