#include "world.hpp"

#include <algorithm>

namespace stand_in {

World &World::get() {
  // Never destroyed: a process may end while work is queued.
  static World *world = new World;
  return *world;
}

void World::reset(const Settings &given) {
  for (const auto &one : pending_) {
    one.first->needs.clear();
    one.first->dependents.clear();
  }
  pending_.clear();
  ready_.clear();
  streams_.clear();
  events_.clear();
  memory.clear();
  settings_ = given;
  random_.seed(given.seed);
  pace_ = random_() % 3;
  is_by_rank_ = flip();
  is_focused_ = flip();
  if (given.is_lazy) pace_ = 0, is_focused_ = true;
  ranks_.clear();
  for (size_t i = 0; i < MOST_STREAMS; ++i) ranks_.push_back(random_());
  legacy_.clear();
  next_stream_ = 1;
  for (int device = 0; device < 2; ++device) legacy_.push_back({next_stream_++, device, true, 0, nullptr});
  host_ = Clock{1};
  lost = cudaSuccess;
  calls = work = copies = longest_chain = 0;
  failed_call = nullptr;
  faults.clear();
  now_ms_ = 0;
}

cudaError_t World::enter(const char *name) {
  if (is_armed && ++calls == settings_.fail_at) {
    failed_call = name;
    return settings_.fail_with;
  }
  if (pace_ == 2)
    while (!ready_.empty() && lost == cudaSuccess) step(nullptr);
  if (pace_ == 1)
    for (uint64_t n = random_() % 6; n > 0 && !ready_.empty() && lost == cudaSuccess; --n) step(nullptr);
  memory.open(false);
  return lost;
}

Stream *World::stream(cudaStream_t handle) {
  if (handle == nullptr) return &legacy(current_device);
  const auto found = streams_.find(handle);
  return found == streams_.end() ? nullptr : &found->second;
}

Event *World::event(cudaEvent_t handle) {
  const auto found = events_.find(handle);
  return found == events_.end() ? nullptr : &found->second;
}

cudaStream_t World::add_stream(bool is_blocking) {
  if (next_stream_ == MOST_STREAMS) std::abort();
  const auto handle = reinterpret_cast<cudaStream_t>(next_handle_ += 16);
  streams_[handle] = {next_stream_++, current_device, is_blocking, 0, nullptr};
  return handle;
}

cudaEvent_t World::add_event(bool is_timed) {
  const auto handle = reinterpret_cast<cudaEvent_t>(next_handle_ += 16);
  events_[handle] = {current_device, is_timed, nullptr};
  return handle;
}

OpRef World::issue(Stream &stream, std::vector<std::function<void(const Op &)>> pieces, const OpRef &also) {
  std::vector<OpRef> before{stream.last, also};
  if (&stream == &legacy(stream.device)) {
    for (auto &one : streams_)
      if (one.second.is_blocking && one.second.device == stream.device) before.push_back(one.second.last);
  } else if (stream.is_blocking) {
    before.push_back(legacy(stream.device).last);
  }
  const uint32_t tick = ++stream.ticks;
  const auto queue = [&](std::function<void(const Op &)> run, const std::vector<OpRef> &after, bool is_mark) {
    auto op = std::make_shared<Op>();
    op->run = std::move(run);
    op->stream = stream.number;
    op->tick = tick;
    op->device = stream.device;
    op->clock = host_;
    for (const OpRef &one : after) {
      if (one == nullptr) continue;
      join(op->clock, one->clock);
      op->chain = std::max(op->chain, one->chain);
      if (one->is_done) continue;
      op->needs.push_back(one.get());
      one->dependents.push_back(op);
    }
    if (!is_mark) ++op->chain, ++copies;
    longest_chain = std::max(longest_chain, op->chain);
    op->clock.resize(std::max(op->clock.size(), stream.number + 1));
    op->clock[stream.number] = tick;
    pending_[op.get()] = op;
    if (op->needs.empty()) ready_.push_back(op);
    return op;
  };
  std::vector<OpRef> parts;
  for (auto &piece : pieces) parts.push_back(queue(std::move(piece), before, false));
  stream.last = parts.size() == 1 ? parts[0] : queue([](const Op &) {}, parts.empty() ? before : parts, true);
  return stream.last;
}

OpRef World::take_ready(const std::set<const Op *> *only) {
  std::vector<size_t> candidates;
  for (size_t i = 0; i < ready_.size(); ++i)
    if (only == nullptr || only->count(ready_[i].get())) candidates.push_back(i);
  size_t chosen = candidates[random_() % candidates.size()];
  if (is_by_rank_)
    for (const size_t i : candidates)
      if (ranks_[ready_[i]->stream] < ranks_[ready_[chosen]->stream]) chosen = i;
  const OpRef op = ready_[chosen];
  ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(chosen));
  return op;
}

void World::step(const std::set<const Op *> *only) {
  const OpRef op = take_ready(only);
  if (++work == settings_.lose_at) {
    lost = settings_.lose_with;
    return;
  }
  memory.open(true);
  op->run(*op);
  if (lost == cudaSuccess) end(op);
}

void World::end(const OpRef &op) {
  op->is_done = true;
  op->run = nullptr;
  op->done_at_ms = now_ms_ += 0.001;
  for (const OpRef &one : op->dependents) {
    one->needs.erase(std::find(one->needs.begin(), one->needs.end(), op.get()));
    if (one->needs.empty()) ready_.push_back(one);
  }
  op->dependents.clear();
  pending_.erase(op.get());
}

void World::finish(const OpRef &op) {
  if (op == nullptr) return;
  std::set<const Op *> needed;
  if (is_focused_ && !op->is_done) {
    std::vector<const Op *> open{op.get()};
    while (!open.empty()) {
      const Op *one = open.back();
      open.pop_back();
      if (needed.insert(one).second) open.insert(open.end(), one->needs.begin(), one->needs.end());
    }
  }
  while (!op->is_done && lost == cudaSuccess) step(is_focused_ ? &needed : nullptr);
  memory.open(false);
  if (op->is_done) learn(*op);
}

void World::finish_all(int device) {
  finish(legacy(device).last);
  for (auto &one : streams_)
    if (one.second.device == device) finish(one.second.last);
}

void World::access(const Op &op, uint64_t address, uint64_t bytes, bool is_write, const Clock &clock) {
  const std::string what = memory.access(address, bytes, is_write, op.stream, op.tick, clock);
  if (!what.empty()) add_fault(what);
}

void World::access_by_host(uint64_t address, uint64_t bytes, bool is_write) {
  const std::string what = memory.access(address, bytes, is_write, 0, host_[0], host_);
  if (!what.empty()) add_fault("by the host, " + what);
  ++host_[0];
}

void World::access_by_kernel(uint64_t destination, uint64_t source, uint64_t bytes) {
  for (const uint64_t address : {destination, source}) {
    if (is_register(address)) continue;
    int device = 0;
    const Place place = memory.place_of(address, bytes, &device);
    const bool is_near = place == Place::NEAR && device == kernel_->device;
    if (!is_near && (place != Place::PINNED || settings_.kernels_stay_near)) {
      add_fault("a kernel touches what is not near memory");
      lost = cudaErrorIllegalAddress;
      throw KernelStop{};
    }
    if (address % bytes != 0) {
      add_fault("a kernel's word is not aligned");
      lost = cudaErrorMisalignedAddress;
      throw KernelStop{};
    }
  }
  if (!is_register(source)) access(*kernel_, source, bytes, false, kernel_->clock);
  if (!is_register(destination)) access(*kernel_, destination, bytes, true, kernel_->clock);
}

// A kernel's variables lie on the stack of the thread that runs it, below the frame of `run_kernel_block`.
bool World::is_register(uint64_t address) const { return address < frame_ && frame_ - address < 1u << 16; }

void World::run_kernel_block(const Op &op, const std::function<void()> &block) {
  kernel_ = &op;
  const char here = 0;
  frame_ = reinterpret_cast<uint64_t>(&here);
  try {
    block();
  } catch (const KernelStop &) {
  }
  kernel_ = nullptr;
}

void World::free_memory(uint64_t base) {
  const Region region = *memory.at(base);
  const std::string where = lost == cudaSuccess ? memory.unsettled(region, host_) : "";
  if (!where.empty()) add_fault("released while it is used: " + where);
  memory.remove(base);
}

void World::add_fault(const std::string &what) {
  if (faults.size() < 8) faults.push_back(what);
}

std::vector<std::string> World::leftovers() const {
  std::vector<std::string> all(streams_.size(), "a stream");
  all.insert(all.end(), events_.size(), "an event");
  for (const Region &region : memory.regions())
    all.push_back(region.is_registered ? "a registration" : region.place == Place::NEAR ? "near memory" : "pinned memory");
  return all;
}

}  // namespace stand_in
