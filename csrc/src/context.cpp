// The C interface: contexts, handles, and the boundary that no exception crosses.
#include <map>
#include <mutex>
#include <new>

#include "backend.hpp"
#include "calibrate.hpp"
#include "plan.hpp"

struct ax_context {
  std::unique_ptr<ax::Backend> backend;
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<ax::Ticket>> tickets;
  uint64_t next_handle = 1;
};

namespace {

using ax::fail;

// Runs `body(fault)`, reports its fault, and turns its exceptions into a code.
template <typename Body>
int32_t guarded(ax_fault *out, Body body) noexcept {
  ax_fault fault{};
  try {
    body(fault);
  } catch (...) {  // the standard library throws without memory or threads
    fail(fault, AX_MEMORY, AX_FIELD_MEMORY);
  }
  if (out != nullptr) *out = fault;
  return fault.code;
}

int32_t check_stats(const ax_stats *stats, ax_fault &fault) {
  if (stats == nullptr) return fail(fault, AX_NULL, AX_FIELD_STATS);
  return stats->struct_bytes == sizeof(ax_stats) ? AX_OK : fail(fault, AX_STRUCT, AX_FIELD_STATS);
}

std::shared_ptr<ax::Ticket> start(ax_context *context, const ax_job *given, ax_fault &fault) {
  ax::Job job;
  if (ax::check_job(given, job, fault)) return nullptr;
  job.strategy = ax::choose(job, given->table, context->backend->slot_bytes());
  return context->backend->start(std::move(job), fault);
}

void report(ax::Ticket &ticket, ax_stats *stats, ax_fault &fault) {
  const ax::Outcome outcome = ticket.outcome();
  fault = outcome.fault;
  *stats = outcome.stats;
  stats->struct_bytes = sizeof(ax_stats);
}

void finish(ax_context *context, uint64_t handle, ax_stats *stats, ax_fault &fault, bool is_patient) {
  if (context == nullptr) return void(fail(fault, AX_NULL, AX_FIELD_CONTEXT));
  if (check_stats(stats, fault)) return;
  std::shared_ptr<ax::Ticket> ticket;
  {
    std::lock_guard<std::mutex> lock(context->mutex);
    const auto found = context->tickets.find(handle);
    // A null ticket is a handle that ax_submit reserves for a job that has not started.
    if (found == context->tickets.end() || found->second == nullptr)
      return void(fail(fault, AX_HANDLE, AX_FIELD_HANDLE));
    ticket = found->second;
  }
  if (is_patient)
    ticket->wait();
  else if (!ticket->is_done())
    return void(fail(fault, AX_PENDING, AX_FIELD_HANDLE));
  {
    std::lock_guard<std::mutex> lock(context->mutex);
    // Another thread may have reported this end meanwhile.
    if (context->tickets.erase(handle) == 0) return void(fail(fault, AX_HANDLE, AX_FIELD_HANDLE));
  }
  report(*ticket, stats, fault);
}

int32_t check_memory(ax_context *context, uint64_t base, uint64_t bytes, ax_fault &fault) {
  if (context == nullptr) return fail(fault, AX_NULL, AX_FIELD_CONTEXT);
  if (base == 0) return fail(fault, AX_NULL, AX_FIELD_MEMORY);
  if (bytes == 0 || bytes > UINT64_MAX - base) return fail(fault, AX_LIMIT, AX_FIELD_MEMORY);
  return AX_OK;
}

}  // namespace

extern "C" {

uint32_t ax_version(void) { return AX_VERSION; }

const char *ax_error_text(int32_t code) {
  switch (code) {
    case AX_OK: return "all is well";
    case AX_NULL: return "a pointer is null";
    case AX_STRUCT: return "the structure is not of this version";
    case AX_CHOICE: return "the value is not one of those that exist";
    case AX_LIMIT: return "the number is zero or beyond its limit";
    case AX_ALIGN: return "the value is not a multiple of the alignment";
    case AX_STRIDE: return "the stride is less than a block";
    case AX_OVERFLOW: return "the plane reaches beyond the address space";
    case AX_MISMATCH: return "source and destination differ in the size of their blocks";
    case AX_RANGE: return "the block lies outside of a plane";
    case AX_TWICE: return "the destination block is written twice";
    case AX_OVERLAP: return "the plane overlaps another one";
    case AX_BACKEND: return "the back end is not in this build";
    case AX_MEMORY: return "memory could not be had";
    case AX_HANDLE: return "there is no such job, or its end was reported already";
    case AX_BUSY: return "too many jobs are under way";
    case AX_DEVICE: return "the device failed";
    case AX_PLACE: return "the plane lies in the wrong memory for the direction";
    case AX_PENDING: return "the job is still under way";
    case AX_NO_DEVICE: return "no CUDA device answers";
    case AX_OLD_DRIVER: return "the NVIDIA driver is older than the CUDA of this build";
    case AX_CAPABILITY: return "this build has no code for the device's compute capability";
    default: return "unknown code";
  }
}

int32_t ax_available(uint32_t backend) {
  if (backend == AX_CPU) return 1;
#ifdef AX_WITH_CUDA
  ax_fault fault{};
  if (backend == AX_CUDA) return ax::find_cuda_device(fault) == AX_OK;
#endif
  return 0;
}

int32_t ax_open(const ax_options *options, ax_context **context, ax_fault *out) {
  return guarded(out, [&](ax_fault &fault) {
    if (context == nullptr) return void(fail(fault, AX_NULL, AX_FIELD_CONTEXT));
    *context = nullptr;
    if (ax::check_options(options, fault)) return;
    auto opened = std::make_unique<ax_context>();
#ifdef AX_WITH_CUDA
    if (options->backend == AX_CUDA) {
      if (ax::find_cuda_device(fault)) return;
      opened->backend = ax::make_cuda_backend(*options, fault);
    }
#else
    if (options->backend == AX_CUDA) return void(fail(fault, AX_BACKEND, AX_FIELD_BACKEND));
#endif
    if (options->backend == AX_CPU) opened->backend = ax::make_cpu_backend(*options);
    if (opened->backend != nullptr) *context = opened.release();
  });
}

void ax_close(ax_context *context) { delete context; }

int32_t ax_copy(ax_context *context, const ax_job *job, ax_stats *stats, ax_fault *out) {
  return guarded(out, [&](ax_fault &fault) {
    if (context == nullptr) return void(fail(fault, AX_NULL, AX_FIELD_CONTEXT));
    if (check_stats(stats, fault)) return;
    const auto ticket = start(context, job, fault);
    if (ticket == nullptr) return;
    ticket->wait();
    report(*ticket, stats, fault);
  });
}

int32_t ax_submit(ax_context *context, const ax_job *job, uint64_t *handle, ax_fault *out) {
  return guarded(out, [&](ax_fault &fault) {
    if (context == nullptr) return void(fail(fault, AX_NULL, AX_FIELD_CONTEXT));
    if (handle == nullptr) return void(fail(fault, AX_NULL, AX_FIELD_HANDLE));
    uint64_t mine = 0;
    {
      // The handle is reserved before the job starts, so that a running job always has one.
      std::lock_guard<std::mutex> lock(context->mutex);
      if (context->tickets.size() >= AX_MAX_PENDING) return void(fail(fault, AX_BUSY, AX_FIELD_HANDLE));
      mine = context->next_handle++;
      context->tickets[mine] = nullptr;
    }
    std::shared_ptr<ax::Ticket> ticket;
    try {
      ticket = start(context, job, fault);
    } catch (...) {
      std::lock_guard<std::mutex> lock(context->mutex);
      context->tickets.erase(mine);
      throw;
    }
    std::lock_guard<std::mutex> lock(context->mutex);
    if (ticket == nullptr) {
      context->tickets.erase(mine);
      return;
    }
    context->tickets[mine] = ticket;
    *handle = mine;
  });
}

int32_t ax_poll(ax_context *context, uint64_t handle, ax_stats *stats, ax_fault *out) {
  return guarded(out, [&](ax_fault &fault) { finish(context, handle, stats, fault, false); });
}

int32_t ax_wait(ax_context *context, uint64_t handle, ax_stats *stats, ax_fault *out) {
  return guarded(out, [&](ax_fault &fault) { finish(context, handle, stats, fault, true); });
}

int32_t ax_calibrate(ax_context *context, ax_table *table, ax_fault *out) {
  return guarded(out, [&](ax_fault &fault) {
    if (context == nullptr) return void(fail(fault, AX_NULL, AX_FIELD_CONTEXT));
    if (table == nullptr) return void(fail(fault, AX_NULL, AX_FIELD_TABLE));
    if (table->struct_bytes != sizeof(ax_table)) return void(fail(fault, AX_STRUCT, AX_FIELD_TABLE));
    ax::calibrate(*context->backend, *table, fault);
  });
}

int32_t ax_pin(ax_context *context, uint64_t base, uint64_t bytes, ax_fault *out) {
  return guarded(out, [&](ax_fault &fault) {
    if (check_memory(context, base, bytes, fault) == AX_OK) context->backend->pin(base, bytes, fault);
  });
}

int32_t ax_unpin(ax_context *context, uint64_t base, uint64_t bytes, ax_fault *out) {
  return guarded(out, [&](ax_fault &fault) {
    if (check_memory(context, base, bytes, fault) == AX_OK) context->backend->unpin(base, bytes, fault);
  });
}

}  // extern "C"
