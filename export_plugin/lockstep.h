/* Lockstep's export plugin: how a trainer process hands its weights to the trainer_agent on the same host.
 *
 * One lockstep_publisher per (process, model), of one of two kinds.
 *
 * In place: every rank that writes opens the model with the same tensors, and the agent commits a version when all
 * ranks have committed it. Per step, on each rank:
 *
 *     lockstep_begin(publisher, version, &data);    waits, if at all, for the tail of the previous diff
 *     ... write the bytes of some tensors at data + tensor.offset, or use lockstep_write() ...
 *     lockstep_tensors_done(publisher, tensors, n); as they complete, in any order, each of this rank's once
 *     lockstep_commit(publisher, label);            this rank is done
 *
 * Sharded: a rank describes what it holds in a description (JSON, plan/FORMAT.md), gathers the descriptions of all
 * ranks, and opens the model with them: a plan of what each rank copies is compiled once, and proved, on every rank
 * alike. Ranks whose description says "on_agent_host" write into shared memory; the others send theirs to one of those
 * through `exchange`. The plan decides which of several replicas writes; the rest return at once. Per step, on every
 * rank:
 *
 *     lockstep_publish(publisher, version, label, NULL);
 *
 * Memory: `data` is the data section of a slot in shared memory, owned by the library. It is for writing until commit
 * or abort, and mapped until close.
 *
 * Threads: calls on one lockstep_publisher must not overlap; different models are independent. The library starts the
 * threads that copy, and no others. A forked process has no part in its parent's models: it opens its own.
 *
 * Errors: every function answers LOCKSTEP_OK or a code below; lockstep_last_error() has the sentence. Nothing is
 * thrown, nothing calls exit, SIGPIPE is never raised. LOCKSTEP_STATE also for a function of the other kind.
 *
 * An agent that is restarted is reconnected to within `reconnect_timeout_ms`, inside the call that noticed, and what
 * this rank had reported is reported again. It gets its buffers back, so the run continues.
 */
#ifndef LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_H_
#define LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_ABI_VERSION 4

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

/* A local tensor's memory, in the order of the rank's description: parts in order, parameters in order. */
typedef struct lockstep_local_tensor {
  const char* name; /* as in the description */
  const char* dtype;
  const uint64_t* shape;
  const uint64_t* strides; /* in elements; null: contiguous */
  uint32_t rank;
  void* address;    /* may be null when the tensor has no elements here; written to by lockstep_import only */
  uint32_t convert; /* 1: exported as BF16 though it is F32, rounded to nearest even, where the HuggingFace tensor is
                       BF16; 0: its dtype must be the HuggingFace tensor's. Ignored by lockstep_import */
} lockstep_local_tensor;

/* How bytes get from a rank on another host to one on the agent's host. Messages between two ranks arrive in the order
 * in which they were sent. Every function answers LOCKSTEP_OK or a code above; after a failure `error` has the
 * sentence, valid until the next call. The calls come from the thread that publishes. */
typedef struct lockstep_exchange {
  void* context;
  uint32_t in_gpu_memory; /* 0: all messages lie in host memory; 1: in that of GPU `device`, which then needs a library
                             with CUDA that reaches it. The same on every rank */
  int32_t device;         /* as CUDA numbers it in this process */
  /* Start and return; the memory stays as it is until wait(). *transfer is what wait() takes, not 0. */
  int (*start_send)(void* context, uint32_t peer, const void* data, uint64_t bytes, uint64_t* transfer);
  int (*start_receive)(void* context, uint32_t peer, void* data, uint64_t bytes, uint64_t* transfer);
  int (*wait)(void* context, uint64_t transfer);
  const char* (*error)(void* context);
} lockstep_exchange;

typedef struct lockstep_options {
  uint32_t abi_version;    /* LOCKSTEP_ABI_VERSION */
  const char* socket_path; /* the agent's unix socket */
  const char* model;       /* [A-Za-z0-9._-]{1,128} */
  uint32_t rank;           /* of this process, below `ranks` */
  uint32_t ranks;   /* in place: writers on this host, 1 for a plain trainer; sharded: all, one description each */
  uint32_t threads; /* that copy, the caller's among them; 0: as many as there are cores for each rank of this host, at
                       most 4 */
  uint32_t connect_timeout_ms;   /* 0: 10,000 */
  uint32_t reconnect_timeout_ms; /* 0: 60,000 */
  uint32_t call_timeout_ms;      /* how long a call may wait for the agent's answer; 0: 600,000 */
  const char* run; /* null: a new run. 32 hex digits: continue this run, which the agent still holds, of the same
                      tensors, attachments and number of ranks that write; so does a rank that takes the place of one
                      that died while the others live */
  const char* attachments; /* null, or a JSON object of small text files that belong to the model, name to text: an
                              adapter's adapter_config.json. The same on every rank */
  const char* guard; /* null, or a JSON object: what every version is to keep (trainer_agent/run/guard.h). A commit
                        waits until all ranks have committed and the version was compared with the one before. Where
                        the version breaks the guard, the commit is LOCKSTEP_BAD_DATA on ranks of the agent's host, and
                        LOCKSTEP_ABORTED on those of others. The same on every rank */
  int (*interrupted)(void* context); /* null, or asked several times a second by a call that waits for the agent, not
                                        for the exchange, how often it was interrupted, until it returns. 1 ends it as
                                        a passed call_timeout_ms does, LOCKSTEP_DEADLINE: a version being written is
                                        aborted, and the next one, of a newer number, works. The wait for the answer to
                                        a commit goes on; 2 ends it, and the error's text says that the version
                                        "may be committed or not" */
  void* context;

  /* In place. */
  const lockstep_tensor* tensors; /* null: sharded */
  size_t tensor_count;
  const size_t* owned; /* positions in `tensors` of those that this rank writes: each tensor has one rank that does.
                          LOCKSTEP_BAD_DATA, of the last rank to open, when one has none or two. Null: all */
  size_t owned_count;

  /* Sharded. */
  const char* const* descriptions; /* of all ranks, in rank order; null: in place */
  const lockstep_local_tensor* locals;
  size_t local_count;
  uint64_t bucket_bytes;             /* memory for the exchange, the same on each rank; 0: 512 MiB */
  const lockstep_exchange* exchange; /* null when all ranks are on the agent's host */
  const uint32_t* hosts; /* null, or the host of each rank, counted from 0: the model is published in parts, to an agent
                            on each host. This is the part of host `part`, under one `run` that all ranks give, and
                            which its agent may not know yet. A rank opens the parts that it writes or sends to; the
                            descriptions' on_agent_host is not read */
  uint32_t part;
} lockstep_options;

typedef struct lockstep_publisher lockstep_publisher;

/* Connects, describes the model and maps the agent's buffers; compiles and proves a plan. Nothing is copied. On failure
 * *publisher is null and lockstep_last_error(NULL) has the sentence (per thread). */
int lockstep_open(const lockstep_options* options, lockstep_publisher** publisher);

/* ---- In place ---------------------------------------------------------------------------------------------------- */

/* Starts writing `version`, from 1 to 2^56 - 1, which must be greater than every version of the run. On success *data
 * is the start of the data section to fill. LOCKSTEP_STATE: not greater, or this rank is already writing.
 * LOCKSTEP_ABORTED: a rank is gone, and no version is whole before another takes its place; or, once, another rank has
 * aborted this version. */
int lockstep_begin(lockstep_publisher* publisher, uint64_t version, void** data);

/* A whole tensor in the trainer's memory, or in that of a GPU (lockstep_check_gpu). */
typedef struct lockstep_source {
  size_t tensor; /* its position in `tensors` */
  const void* address;
  uint64_t bytes;   /* at `address`: the tensor's size, and twice that where it is converted */
  uint32_t convert; /* 1: F32 at `address`, rounded to nearest even, for a tensor of BF16; 0: the tensor's bytes */
} lockstep_source;

/* Copies whole tensors into place and reports them: all are checked first, and reported while others are still
 * copied. Work that was queued on tensors of a GPU must be done. What they are copied to is pinned, for later versions
 * too, where that can be had. */
int lockstep_write(lockstep_publisher* publisher, const lockstep_source* sources, size_t count);

/* Reports that the bytes of these tensors, positions in `tensors`, are final in the version being written. A tensor
 * that is reported twice is an error at once or at commit. LOCKSTEP_ABORTED, of lockstep_write too: as of
 * lockstep_commit. */
int lockstep_tensors_done(lockstep_publisher* publisher, const size_t* tensors, size_t count);

/* This rank is done with the version, which is called `label` beside its number (lockstep_publish). Answers when the
 * agent has recorded it; with the last rank's commit the version is whole and will be served. LOCKSTEP_BAD_DATA: bytes
 * are missing (the error names the first tensor); the version is gone. LOCKSTEP_ABORTED: another rank is gone or
 * aborted; the version is gone. In both cases the next begin works once all ranks are there. */
int lockstep_commit(lockstep_publisher* publisher, const char* label);

/* ---- Sharded ----------------------------------------------------------------------------------------------------- */

/* This rank's part of `version`. `addresses`, when not null, has local_count addresses that take the place of those at
 * open. After an error the version is gone for all ranks, and the next publish works; LOCKSTEP_UNAVAILABLE from the
 * exchange is final.
 *
 * `label` is what the version is called beside its number: UTF-8 of at most 64 bytes without control characters, such
 * as a step; null or empty: nothing. It goes where the version goes and identifies nothing: any number of versions may
 * have the same. Ranks that write and give one must give the same: the commit of the first that differs is
 * LOCKSTEP_BAD_DATA, and the version is gone. */
int lockstep_publish(lockstep_publisher* publisher, uint64_t version, const char* label, const void* const* addresses);

/* Writes the `bytes` bytes of the data section that begin at `offset`, made of the tensors as they are now, to
 * `target`, in host or GPU memory, and answers when they are there; no agent learns of it. `addresses` as for publish;
 * work that was queued on the tensors must be done. LOCKSTEP_BAD_DATA: this rank does not hold the whole model, or the
 * range leaves the data section or cuts an element. */
int lockstep_fill(lockstep_publisher* publisher, const void* const* addresses, uint64_t offset, uint64_t bytes,
                  void* target);

/* JSON, valid until the next call: {"plan": digest, "bytes": n, "bucket_bytes": n, "writes": bool, "pinned": bool,
 * "pin_trouble": text, "tensors": [{"name", "dtype", "shape", "offset"}, ...]}. writes: whether this rank talks to the
 * agent. pinned: whether the memory that tensors are copied to from a GPU is pinned, from open on, or from the first
 * publish with such addresses. pin_trouble: why it could not be, which makes copies slower; else empty. */
const char* lockstep_describe(lockstep_publisher* publisher);

/* ---- Both -------------------------------------------------------------------------------------------------------- */

/* Gives `version` up, for all ranks, which get `reason`, a sentence. In place: the one that is being written. Sharded:
 * in place of lockstep_publish, on a rank that failed before it came to it, so that no other rank waits for its part;
 * waits for no more than publish would. LOCKSTEP_OK: the version is gone, the next one works. */
int lockstep_abort(lockstep_publisher* publisher, uint64_t version, const char* reason);

/* 32 hex digits, valid until close; "" on a rank that does not talk to the agent. */
const char* lockstep_run(const lockstep_publisher* publisher);
/* The newest version this rank knows to be whole, committed by all ranks; 0 for none. The last rank to commit knows it
 * at once, the others with their next commit. */
uint64_t lockstep_committed_version(const lockstep_publisher* publisher);

/* Of the last version that was published, of this rank. */
typedef struct lockstep_publish_stats {
  uint64_t bytes_copied;   /* from own tensors into the slot */
  uint64_t bytes_frozen;   /* of own frozen tensors that were neither copied nor sent, being there already */
  uint64_t bytes_sent;     /* to another rank, without headers */
  uint64_t bytes_received; /* from other ranks */
  uint64_t buckets_sent;
  uint64_t buckets_received;
  uint64_t exchange_memory_bytes; /* for buckets, at most */
  uint64_t begin_us;              /* waited for the slot */
  uint64_t total_us;
} lockstep_publish_stats;

int lockstep_stats(const lockstep_publisher* publisher, lockstep_publish_stats* stats);

/* Leaves the agent, in place; a version being written is aborted. What begin gave stays mapped until close, which alone
 * is still to be called. Null is fine. */
void lockstep_leave(lockstep_publisher* publisher);

/* Leaves, and unmaps. Null is fine. */
void lockstep_close(lockstep_publisher* publisher);

/* The sentence of the last failure of a call on `publisher`, or of this thread's last one without for NULL. Valid until
 * the next call. Never null. */
const char* lockstep_last_error(const lockstep_publisher* publisher);

/* ---- Without a publisher ----------------------------------------------------------------------------------------- */

/* The inverse: fills every local tensor from the HuggingFace checkpoint in `directory`, by this rank's own description.
 * What the checkpoint has nothing for (rows of a padded vocabulary) becomes zero. Everything is checked before anything
 * is written. lockstep_last_error(NULL) has the sentence. */
int lockstep_import(const char* directory, const char* description, const lockstep_local_tensor* locals,
                    size_t local_count, uint32_t threads);

/* The metadata-only dry run: *json is tensors_meta in export order, [{"name", "dtype", "shape", "offset"}, ...], from
 * descriptions in which no rank need hold anything. Free it with lockstep_free. */
int lockstep_tensors_meta(const char* const* descriptions, uint32_t ranks, char** json);

/* Who must serve which version: so many receivers, so many engines, or all that are named; of these three at most one
 * is given. Without any: every receiver that is connected to the agent, and one at least. */
typedef struct lockstep_served_query {
  uint32_t abi_version;    /* LOCKSTEP_ABI_VERSION */
  const char* socket_path; /* the agent's unix socket */
  const char* model;
  const char* run;          /* 32 hex digits; null or empty: the model's current run */
  uint64_t version;         /* 0: the newest that has the label; without one the newest when this is called */
  const char* label;        /* null or empty: none */
  uint32_t receivers;       /* how many, with all of their engines; one without an engine need only hold it */
  uint32_t engines;         /* how many, of whichever receivers */
  const char* const* names; /* RECEIVER, RECEIVER/ENGINE, or "*": every receiver that is connected, one at least */
  size_t name_count;
  uint32_t timeout_ms;               /* UINT32_MAX: no limit */
  int (*interrupted)(void* context); /* null, or asked several times a second; 1 ends the call, LOCKSTEP_DEADLINE */
  void* context;
} lockstep_served_query;

/* Waits until the version, or a newer one of its run, is served. An agent that is restarted meanwhile is asked again.
 * Any thread may call this. *json is the agent's last answer, an AwaitServedResponse (proto/lockstep/v1/agent.proto) as
 * lockstepctl --json prints it, or null; free it with lockstep_free.
 *
 * LOCKSTEP_DEADLINE: the time is up; lockstep_last_error(NULL) and "lacking" say what each receiver serves.
 * LOCKSTEP_UNAVAILABLE: the time is up, and no agent answers. LOCKSTEP_STATE: the run has ended. LOCKSTEP_NOT_FOUND: no
 * run is given, and the agent has no such model. */
int lockstep_wait_served(const lockstep_served_query* query, char** json);

typedef struct lockstep_changes_query {
  uint32_t abi_version;    /* LOCKSTEP_ABI_VERSION */
  const char* socket_path; /* the agent's unix socket */
  const char* model;
  const char* run;                   /* 32 hex digits; null or empty: the model's current run */
  uint64_t version;                  /* 0: the newest */
  uint32_t timeout_ms;               /* UINT32_MAX: no limit */
  int (*interrupted)(void* context); /* as of lockstep_served_query */
  void* context;
} lockstep_changes_query;

/* What the version changed of the one before it, tensor by tensor, once the agent has compared the two. Any thread may
 * call this. *json is a VersionChanges (proto/lockstep/v1/agent.proto) as lockstepctl --json prints it, or null; free
 * it with lockstep_free. LOCKSTEP_DEADLINE and LOCKSTEP_UNAVAILABLE: the time is up. LOCKSTEP_NOT_FOUND: the agent has
 * no such model or run, or has forgotten the version. */
int lockstep_wait_changes(const lockstep_changes_query* query, char** json);
void lockstep_free(void* memory);

/* 1: this library was built with --config=cuda. */
int lockstep_has_cuda(void);
/* LOCKSTEP_OK: local tensors may lie in GPU memory. Else lockstep_last_error(NULL) says why they may not, and what
 * to do: a build without CUDA, no GPU, no driver, one that is too old. Tensors in host memory are fine in any case. */
int lockstep_check_gpu(void);

/* The project's release, as "1.2.3". */
const char* lockstep_version(void);

#ifdef __cplusplus
}
#endif

#endif /* LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_H_ */
