#include "torch/backends/stream_order.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <iterator>

namespace remint {

std::uint32_t StreamOrder::current() {
  const c10::Stream now = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  if (!streams_.empty() && streams_[last_].stream == now) return last_;
  last_ = number_of(now);
  return last_;
}

std::uint32_t StreamOrder::number_of(const c10::Stream& stream) {
  for (std::uint32_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].stream == stream) return i;
  }
  streams_.emplace_back(stream);
  for (KnownStream& known : streams_) known.seen.resize(streams_.size(), 0);
  // What the first stream did so far was not written down.
  if (streams_.size() == 2) first_ticket_ = ++streams_[0].ticket;
  return static_cast<std::uint32_t>(streams_.size() - 1);
}

void StreamOrder::wait(std::uint32_t waiting, Use use) {
  if (use.stream == waiting || streams_[waiting].seen[use.stream] >= use.ticket) return;
  KnownStream& before = streams_[use.stream];
  KnownStream& after = streams_[waiting];
  // The event comes after all that the other stream has to do now: more than needed, and never too little.
  before.event.record(before.stream);
  before.event.block(after.stream);
  after.seen[use.stream] = before.ticket;
  for (std::size_t i = 0; i < streams_.size(); ++i) after.seen[i] = std::max(after.seen[i], before.seen[i]);
}

template <typename Uses>
void StreamOrder::wait_for(std::uint32_t waiting, const Uses& uses) {
  for (const Use& use : uses) wait(waiting, use);
}

// The last use of each stream is enough.
template <typename Uses>
void StreamOrder::add(Uses& uses, Use use) {
  for (Use& known : uses) {
    if (known.stream == use.stream) {
      known.ticket = std::max(known.ticket, use.ticket);
      return;
    }
  }
  uses.push_back(use);
}

void StreamOrder::cut(const char* at) {
  auto after = spans_.upper_bound(at);
  if (after == spans_.begin()) return;
  auto found = std::prev(after);
  if (found->first == at || found->second.end <= at) return;
  Span upper = found->second;
  found->second.end = at;
  spans_.emplace_hint(after, at, std::move(upper));
}

StreamOrder::Span& StreamOrder::span(const void* address, std::size_t nbytes) {
  const char* begin = static_cast<const char*>(address);
  const char* end = begin + nbytes;
  auto found = spans_.find(begin);
  if (found != spans_.end() && found->second.end == end) return found->second;
  cut(begin);
  cut(end);
  // Several become one: all their uses count.
  Span whole{end, {}, {}, {}};
  const char* covered = begin;
  const auto first = spans_.lower_bound(begin);
  auto last = first;
  for (; last != spans_.end() && last->first < end; ++last) {
    const Span& part = last->second;
    if (last->first == covered) covered = part.end;
    for (const Use& write : part.writes) add(whole.writes, write);
    for (const Use& read : part.reads) add(whole.reads, read);
    for (std::uint32_t stream : part.recorded) whole.recorded.push_back(stream);
  }
  if (covered != end) add(whole.writes, before_spans());
  spans_.erase(first, last);
  return spans_[begin] = std::move(whole);
}

void StreamOrder::before_read(const void* address, std::size_t nbytes) {
  if (!several() || nbytes == 0) return;
  Span& read = span(address, nbytes);
  wait_for(last_, read.writes);
  add(read.reads, next_use(last_));
}

void StreamOrder::before_write(const void* address, std::size_t nbytes) {
  if (!several() || nbytes == 0) return;
  Span& written = span(address, nbytes);
  wait_for(last_, written.writes);
  wait_for(last_, written.reads);
  written.writes.assign(1, next_use(last_));
  written.reads.clear();
}

void StreamOrder::before_reuse(const void* address, std::size_t nbytes) {
  if (!several() || nbytes == 0) return;
  Span& reused = span(address, nbytes);
  wait_for(last_, reused.writes);
  wait_for(last_, reused.reads);
  // A stream that the program recorded has work that no op showed.
  for (std::uint32_t stream : reused.recorded) wait(last_, next_use(stream));
  reused.writes.assign(1, next_use(last_));
  reused.reads.clear();
  reused.recorded.clear();
}

void StreamOrder::before_move(const void* to, const void* from, std::size_t nbytes) {
  if (!several() || nbytes == 0) return;
  before_read(from, nbytes);
  before_reuse(to, nbytes);
}

void StreamOrder::record_stream(const void* address, std::size_t nbytes, const c10::Stream& stream) {
  // The current stream is the first, if there was none: what came before was its work.
  current();
  const std::uint32_t number = number_of(stream);
  if (!several() || nbytes == 0) return;
  Span& used = span(address, nbytes);
  if (std::find(used.recorded.begin(), used.recorded.end(), number) == used.recorded.end()) {
    used.recorded.push_back(number);
  }
}

std::vector<c10::Stream> StreamOrder::forget(const void* address, std::size_t nbytes) {
  std::vector<c10::Stream> used;
  if (!several() || nbytes == 0) return used;
  const Span& gone = span(address, nbytes);
  for (std::uint32_t i = 0; i < streams_.size(); ++i) {
    auto by = [&](const Use& use) { return use.stream == i; };
    if (std::any_of(gone.writes.begin(), gone.writes.end(), by) ||
        std::any_of(gone.reads.begin(), gone.reads.end(), by) ||
        std::find(gone.recorded.begin(), gone.recorded.end(), i) != gone.recorded.end()) {
      used.push_back(streams_[i].stream);
    }
  }
  spans_.erase(static_cast<const char*>(address));
  return used;
}

void StreamOrder::publish() {
  if (!several()) return;
  const std::uint32_t from = last_;
  for (std::uint32_t i = 0; i < streams_.size(); ++i) wait(i, next_use(from));
}

std::vector<c10::Stream> StreamOrder::streams() {
  current();
  std::vector<c10::Stream> all;
  for (const KnownStream& known : streams_) all.push_back(known.stream);
  return all;
}

}  // namespace remint
