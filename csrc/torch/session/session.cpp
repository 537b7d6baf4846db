// An operator call: have its arguments resident, run the kernel, record what it made. session_arguments.cpp
// looks at the arguments and writes the recipe.
#include "torch/session/session.h"

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "torch/session/clock.h"

namespace remint {
namespace {

// Whether autograd is about to make what comes out of this op the gradient of a leaf.
bool accumulating() {
  const auto node = torch::autograd::get_current_node();
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(node.get()) != nullptr;
}

// Whether every tensor on the stack that is on `storage` is all of it.
bool covered(const torch::jit::Stack& stack, std::size_t first, const c10::StorageImpl& storage) {
  bool all = true;
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined() || !is_plain(tensor)) return;
      if (tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() != &storage) return;
      all = all && is_whole(tensor, storage);
    });
  }
  return all;
}

std::uint64_t signature_of(const Operator& op, const torch::jit::Stack& stack, std::size_t first) {
  std::uint64_t hash = reinterpret_cast<std::uintptr_t>(&op);
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined() || !is_plain(tensor)) return;
      hash = combine(hash, static_cast<std::uint64_t>(tensor.scalar_type()));
      for (std::int64_t size : tensor.sizes()) hash = combine(hash, static_cast<std::uint64_t>(size));
    });
  }
  return hash;
}

}  // namespace

// One operator call, for the op driver.
class Session::SessionOp final : public ProgramOp {
 public:
  SessionOp(Session& session, const Operator& facts, const Call& call, torch::jit::Stack* stack,
            Clock::time_point entered)
      : session_(session),
        facts_(facts),
        call_(call),
        stack_(stack),
        first_(stack->size() - facts.writes.size()),
        entered_(entered),
        elsewhere_(session.replayed_ + session.engine_->statistics().searching) {}

  void describe(OpDescription& description) override {
    std::vector<ValueId> before = std::move(session_.unlocked_constants_);
    session_.unlocked_constants_.clear();
    session_.look_at(facts_, *stack_, first_);
    if (call_.kernel != nullptr) session_.recordable_ = false;
    session_.prepare_writes(facts_);
    for (ValueId value : before) session_.engine_->release(value);
    signature_ = signature_of(facts_, *stack_, first_);
    estimate_ = &session_.costs_.of(signature_);
    description.acquired = session_.acquired_;
    for (const Touched& touched : session_.touched_) {
      if (touched.write != Operator::Write::kNo && touched.value != kNone)
        description.written.push_back(touched.value);
    }
    description.writes = facts_.writes_any || !session_.recordable_;
    const bool given = session_.next_cost_ < session_.given_costs_.size();
    const bool given_bytes = given && session_.given_costs_[session_.next_cost_].nbytes >= 0;
    description.expected_cost = given ? session_.given_costs_[session_.next_cost_].cost : estimate_->cost;
    description.expected_bytes =
        given_bytes ? session_.given_costs_[session_.next_cost_].nbytes : estimate_->nbytes;
  }

  void ready(OpDescription&) override {
    is_ready_ = true;
    session_.let_go_of_unlocked_constants();
    recipe_ = session_.write_recipe(facts_, call_.keys, *stack_, first_);
    searching_ = session_.engine_->statistics().searching;
    started_ = Clock::now();
    session_.bookkeeping_ +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(started_ - entered_).count() -
        (session_.replayed_ + searching_ - elsewhere_);
    if (session_.recorder_ != nullptr) session_.recorder_->begin_requests();
  }

  void run(bool last_try) override {
    session_.retry_ = !last_try && prepare_retry();
    struct Reset {
      bool& retry;
      ~Reset() { retry = false; }
    } reset{session_.retry_};
    call_(stack_);
    left_ = Clock::now();
  }

  bool undo() override {
    if (!prepared_) return false;
    session_.keep_running({});
    if (session_.recorder_ != nullptr) session_.recorder_->begin_requests();
    for (const auto& [storage, bytes] : statistics_) {
      std::memcpy(storage->_mutable_data_ptr_no_checks().get(), bytes.data(), bytes.size());
    }
    if (random_ != nullptr)
      random_->restore(*static_cast<at::CPUGeneratorImpl*>(generator_.unsafeGetGeneratorImpl()));
    stack_->resize(std::min(stack_->size(), first_));
    stack_->insert(stack_->end(), arguments_.begin(), arguments_.end());
    return true;
  }

  void describe_result(OpDescription&, std::vector<BlockId>& blocks) override {
    Nanoseconds cost = std::chrono::duration_cast<std::chrono::nanoseconds>(left_ - started_).count() -
                       (session_.engine_->statistics().searching - searching_);
    if (session_.next_cost_ < session_.given_costs_.size()) {
      cost = session_.given_costs_[session_.next_cost_++].cost;
    } else if (session_.options_.record) {
      // All measurements together make a better estimate afterwards.
      cost = std::max<Nanoseconds>(cost, 1);
    } else {
      cost = CostEstimates::update(*estimate_, std::max<Nanoseconds>(cost, 1));
    }
    gradient_ = facts_.may_accumulate && accumulating();
    estimate_->nbytes =
        session_.describe_made(facts_, recipe_.get(), *stack_, first_, cost, signature_, blocks);
  }

  bool failed(OpDescription& description, std::vector<BlockId>& blocks) override {
    session_.keep_running({});
    session_.forget_dropped();
    if (recipe_ == nullptr || description.outputs.empty()) return false;
    if (session_.recorder_ != nullptr) session_.record_arguments(true);
    session_.note_maker(&facts_);
    for (Output& output : description.outputs) output.tag = session_.next_number_++;
    session_.note_maker(nullptr);
    if (session_.recorder_ != nullptr) session_.recorder_->op(facts_, 1, 0, session_.source_);
    session_.recording_op_ = false;
    if (session_.next_cost_ < session_.given_costs_.size()) ++session_.next_cost_;
    description.cost = 1;
    description.tag = reinterpret_cast<std::uintptr_t>(recipe_.release());
    blocks.assign(description.outputs.size(), kNone);
    return true;
  }

  bool is_ready() const { return is_ready_; }
  bool gradient() const { return gradient_; }
  std::size_t first() const { return first_; }
  Clock::time_point left() const { return left_; }
  std::unique_ptr<Recipe>& recipe() { return recipe_; }

 private:
  bool prepare_retry() {
    if (prepared_) return true;
    if (facts_.seeded) {
      generator_ = generator_of(facts_, *stack_, first_);
      random_ = RandomState::of(generator_);
      if (random_ == nullptr) return false;
    }
    arguments_.assign(stack_->begin() + static_cast<std::ptrdiff_t>(first_), stack_->end());
    // Batch norm may write its running statistics before it asks for memory the last time.
    for (const Touched& touched : session_.touched_) {
      if (touched.write != Operator::Write::kSideEffect) continue;
      const auto* bytes = static_cast<const char*>(touched.storage->_mutable_data_ptr_no_checks().get());
      statistics_.emplace_back(touched.storage, std::string(bytes, touched.storage->nbytes()));
    }
    prepared_ = true;
    return true;
  }

  Session& session_;
  const Operator& facts_;
  const Call& call_;
  torch::jit::Stack* stack_;
  const std::size_t first_;
  const Clock::time_point entered_;
  const Nanoseconds elsewhere_;
  Clock::time_point started_;
  Clock::time_point left_;
  Nanoseconds searching_ = 0;
  std::uint64_t signature_ = 0;
  CostEstimates::Estimate* estimate_ = nullptr;
  std::unique_ptr<Recipe> recipe_;
  bool is_ready_ = false;
  bool gradient_ = false;
  bool prepared_ = false;
  at::Generator generator_;
  std::unique_ptr<RandomState> random_;
  torch::jit::Stack arguments_;
  std::vector<std::pair<c10::StorageImpl*, std::string>> statistics_;
};

void Session::run(const Call& call, torch::jit::Stack* stack) {
  const Operator& facts = operator_facts(call.op);
  c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  if (facts.view) {
    const std::size_t first = stack->size() - facts.writes.size();
    call(stack);
    if (facts.may_accumulate && accumulating()) pin_gradients(*stack, first);
    return;
  }
  // Before the lock: finding the line needs the GIL.
  const std::uint32_t source = options_.source_lines ? source_lines_->current() : kNone;
  std::unique_lock<std::recursive_mutex> lock(mutex_);
  if (busy_ || closed_) {
    call(stack);
    return;
  }
  const Clock::time_point entered = Clock::now();
  settle();
  if (options_.blocks || recorder_ != nullptr) note_pass();
  // Whatever happens, no op is left running.
  struct Busy {
    Session& session;
    ~Busy() {
      session.busy_ = false;
      session.current_ = nullptr;
    }
  } busy{*this};
  busy_ = true;
  current_ = &facts;
  source_ = source;
  SessionOp op(*this, facts, call, stack, entered);
  for (;;) {
    try {
      engine_->run(op, description_, outputs_);
      break;
    } catch (const OutOfMemory& error) {
      if (op.is_ready()) throw;
      let_go_of_unlocked_constants();
      forget_dropped();
      if (!options_.spill || !spill_resident(error.at_once)) fail(error);
    } catch (...) {
      let_go_of_unlocked_constants();
      if (!outputs_.empty()) {
        hold_written(facts);
        for (const Touched& touched : touched_) {
          if (touched.output != kNone) pin_held(touched.held, Why::kNoRecipe);
        }
      }
      forget_dropped();
      throw;
    }
  }
  const std::size_t first = op.first();
  if (!description_.outputs.empty()) {
    op.recipe().release();
    hold_written(facts);
    // An `out` that the kernel made smaller was not overwritten whole: what is left of it is in no recipe.
    for (const Touched& touched : touched_) {
      if (touched.output != kNone && touched.write == Operator::Write::kOverwrites &&
          !covered(*stack, first, *touched.storage)) {
        pin_held(touched.held, Why::kNoRecipe);
      }
    }
    for (std::size_t k = 0; k < fresh_.size(); ++k) {
      void* address = fresh_[k].storage->_mutable_data_ptr_no_checks().get();
      loose_.erase(region_->offset(address));
      adopt(fresh_[k].storage, address, outputs_[num_written_ + k], &facts);
    }
  }
  if (opaque_) {
    // It may look at its arguments around the dispatcher from now on.
    for (const Touched& touched : touched_) {
      if (touched.held != nullptr) pin_held(touched.held, Why::kHandedOut);
    }
  }
  if (op.gradient()) pin_gradients(*stack, first);
  if (facts.read_around) pin_results(*stack, first, Why::kHandedOut, /*integers_only=*/true);
  forget_dropped();
  if (options_.chaos) {
    engine_->evict_all();
    forget_dropped();
  }
  if (options_.engine.check) engine_->check();
  bookkeeping_ += since(op.left());
}

// The gradient of a leaf stays: what it was made from is let go of right after, so to make it again would
// take the whole backward, and the optimizer needs all gradients at once, because it writes what they were
// made from.
void Session::pin_gradients(const torch::jit::Stack& stack, std::size_t first) {
  pin_results(stack, first, Why::kGradient, /*integers_only=*/false);
}

void Session::pin_results(const torch::jit::Stack& stack, std::size_t first, Why why, bool integers_only) {
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      if (!tensor.defined() || !is_plain(tensor)) return;
      if (integers_only && !c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) return;
      Held* held = holder_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
      if (held != nullptr && held->session.get() == this) pin(held, why);
    });
  }
}

// Describes what the kernel made; returns its bytes.
Bytes Session::describe_made(const Operator& op, Recipe* recipe, const torch::jit::Stack& stack,
                             std::size_t first, Nanoseconds cost, std::uint64_t signature,
                             std::vector<BlockId>& blocks) {
  // Storages that the kernel made.
  fresh_.clear();
  std::uint32_t returned = 0;
  opaque_ = false;
  for (std::size_t i = first; i < stack.size(); ++i) {
    for_tensors(stack[i], [&](const at::Tensor& tensor, std::int32_t) {
      const std::uint32_t index = returned++;
      if (!tensor.defined()) return;
      if (!is_plain(tensor)) {
        opaque_ = true;
        return;
      }
      c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      const c10::DataPtr& pointer = storage->_mutable_data_ptr_no_checks();
      if (pointer.get_deleter() != &loose_deleter || !region_->contains(pointer.get())) return;
      for (const Fresh& other : fresh_) {
        if (other.storage == storage) return;
      }
      fresh_.push_back({storage, index});
    });
  }
  if (recipe == nullptr) {
    description_.inputs.clear();
    description_.outputs.clear();
  }
  if (recorder_ != nullptr) record_arguments(recipe != nullptr);
  note_maker(&op);
  for (Output& output : description_.outputs) output.tag = next_number_++;
  description_.cost = cost;
  description_.tag = reinterpret_cast<std::uintptr_t>(recipe);
  blocks.assign(description_.outputs.size(), kNone);
  Bytes nbytes = 0;
  for (const Fresh& fresh : fresh_) {
    const Bytes offset = region_->offset(fresh.storage->_mutable_data_ptr_no_checks().get());
    Loose& loose = loose_.at(offset);
    nbytes += loose.nbytes;
    // What was there before the op, and the op did not see, is none of its outputs.
    if (loose.running) loose.number = next_number_++;
    if (recorder_ != nullptr && loose.running)
      recorder_->fresh_output(loose.nbytes, recipe == nullptr ? kOnce : kFresh, offset);
    if (recipe == nullptr) continue;
    Output output;
    output.tag = loose.number;
    output.nbytes = loose.nbytes;
    description_.outputs.push_back(output);
    blocks.push_back(loose.block);
    recipe->results.push_back({fresh.returned, loose.nbytes});
  }
  num_written_ = description_.outputs.size() - (recipe == nullptr ? 0 : fresh_.size());
  if (recipe == nullptr) {
    for (const Fresh& fresh : fresh_) {
      Touched touched;
      touched.storage = fresh.storage;
      adopt_loose(touched);
      touched.held->made_by = &op;
    }
  }
  keep_running(blocks);
  note_maker(nullptr);
  forget_dropped();
  if (recorder_ != nullptr) recorder_->op(op, cost, signature, source_);
  recording_op_ = false;
  return nbytes;
}

// What the op wrote in place has a new value; the program's tensors move along.
void Session::hold_written(const Operator& op) {
  for (const Touched& touched : touched_) {
    if (touched.output == kNone) continue;
    const ValueId value = outputs_[touched.output];
    set_holder(touched.held->value, nullptr);
    touched.held->value = value;
    touched.held->made_by = &op;
    touched.held->why = Why::kNone;
    set_holder(value, touched.held);
    // The tensor's old name and its new one are the same to the program.
    engine_->release(value);
    if (recorder_ != nullptr) recorder_->about(EventKind::kRelease, touched.number);
  }
}

// What the kernel allocated and did not free, and is no output, stays until someone frees it.
void Session::keep_running(const std::vector<BlockId>& outputs) {
  for (Bytes offset : running_) {
    auto found = loose_.find(offset);
    if (found == loose_.end() || !found->second.running) continue;
    found->second.running = false;
    if (std::find(outputs.begin(), outputs.end(), found->second.block) == outputs.end()) {
      engine_->make_raw(found->second.block);
      found->second.number = next_number_++;
      if (recorder_ == nullptr) continue;
      if (recording_op_) {
        recorder_->fresh_output(found->second.nbytes, kRaw, offset);
      } else {
        recorder_->constant(found->second.nbytes, kRaw);
      }
    }
  }
  running_.clear();
}

}  // namespace remint
