#include "reference/cpu_rank.hpp"

#include "reference/cpu_elements.hpp"
#include "reference/cpu_slots.hpp"
#include "reference/rounding.hpp"
#include "reference/shards.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace ringlab::reference {
namespace {

using layouts::DType;
using layouts::HeadRange;
using layouts::Op;
using layouts::OpKind;
using layouts::Pass;
using layouts::Payload;
using layouts::Run;
using layouts::Schedule;

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

/// One number or `width` of them per (query head, batch element, row of the rank), in this order.
template <class Real>
class Rows {
public:
    void assign(std::int64_t heads, std::int64_t batch, std::int64_t rows, std::int64_t width, Real value) {
        batch_ = batch;
        rows_ = rows;
        width_ = width;
        numbers_.assign(size(heads * batch * rows * width), value);
    }

    MatrixView<Real> matrix(std::int64_t head, std::int64_t batch) {
        return {numbers_.data() + offset(head, batch), rows_, width_, width_};
    }
    std::span<Real> vector(std::int64_t head, std::int64_t batch) {
        return std::span(numbers_).subspan(offset(head, batch), size(rows_ * width_));
    }
    std::vector<Real>& numbers() { return numbers_; }
    const std::vector<Real>& numbers() const { return numbers_; }
    std::int64_t bytes() const { return static_cast<std::int64_t>(numbers_.size() * sizeof(Real)); }

private:
    std::size_t offset(std::int64_t head, std::int64_t batch) const {
        return size((head * batch_ + batch) * rows_ * width_);
    }

    std::int64_t batch_ = 0, rows_ = 0, width_ = 0;
    std::vector<Real> numbers_;
};

/// The forward result of some query heads: while blocks are taken in, o is unnormalised and `maximum` and `sum` are
/// the running softmax; once finished, o is normalised and `maximum` holds the lse.
template <class Real>
struct Partial {
    Rows<Real> o, maximum, sum;

    void reset(std::int64_t heads, std::int64_t batch, std::int64_t rows, std::int64_t width) {
        o.assign(heads, batch, rows, width, 0);
        maximum.assign(heads, batch, rows, 1, -std::numeric_limits<Real>::infinity());
        sum.assign(heads, batch, rows, 1, 0);
    }
    typename BlockAttention<Real>::Softmax state(std::int64_t head, std::int64_t batch) {
        return {o.matrix(head, batch), maximum.vector(head, batch), sum.vector(head, batch)};
    }
    std::int64_t bytes() const { return o.bytes() + maximum.bytes() + sum.bytes(); }
};

template <class Real>
class TypedRank : public CpuRank {
public:
    TypedRank(const Schedule& schedule, int rank, const Inputs& inputs, const CpuOptions& options)
        : problem_(schedule.problem()),
          layout_(schedule.layout()),
          mask_(schedule.mask()),
          rank_(rank),
          inputs_(inputs),
          options_(options),
          positions_(layout_.positions(rank)),
          attention_(problem_, options.tiles),
          row_plan_(plan_rows(mask_, mask_runs(rank, own_runs_), options.tiles)) {
        load_rows(inputs.q, problem_.head_dim, q_);
        result_.reset(problem_.query_heads, problem_.batch, rows(), problem_.value_dim);
    }

    void begin(const Schedule& pass) override {
        pass_ = &pass;
        const auto plan = pass.slots();
        const int heads = static_cast<int>(problem_.kv_heads);
        const auto element_count = problem_.batch * (problem_.head_dim + problem_.value_dim);
        const auto kv_bytes = element_count * layouts::bytes_of(problem_.dtype);
        kv_.emplace(SlotSet::Shape{"K/V", plan.kv_slots, plan.kv_slot_heads, kv_bytes, kv_bytes}, layout_, rank_,
                    heads);
        load_own_block();
        gradients_.emplace(SlotSet::Shape{"dK/dV", plan.gradient_slots, plan.gradient_slot_heads,
                                          element_count * layouts::bytes_of(pass.options().gradient_dtype),
                                          backward() ? element_count * static_cast<std::int64_t>(sizeof(Real)) : 0},
                           layout_, rank_, heads);
        scratch_bytes_ = std::max(scratch_bytes_, kv_->scratch_bytes() + gradients_->scratch_bytes());
        if (backward()) prepare_backward();
    }

    void end() override {
        if (backward()) {
            own_gradient_.assign(gradients_->own().begin(), gradients_->own().end());
        } else if (pass_->options().accumulation == layouts::Accumulation::carry) {
            finish(result_, 0, problem_.query_heads);
        } else {
            require(!pending_merge_, "rank {}: the schedule ends with a partial result that was never merged", rank_);
        }
        note_workspace();
        kv_.reset();
        gradients_.reset();
    }

    std::span<const std::byte> exposed() override { return kv_->own(); }

    void compute(const Op& op) override {
        switch (op.kind) {
            case OpKind::attend: backward() ? attend_backward(op) : attend_forward(op); break;
            case OpKind::merge: merge(op); break;
            case OpKind::add: add(op); break;
            case OpKind::send:
            case OpKind::receive:
            case OpKind::fetch: fail("rank {}: a {} is on the compute lane", rank_, to_string(op.kind));
        }
        note_workspace();
    }

    std::span<const std::byte> outgoing(const Op& op) override {
        auto& slots = slots_of(op.payload);
        const auto bytes = slots.read(op.slot, op.owner, op.heads);
        require(!arrives_narrow(op), "rank {}: the rank's own dK/dV leaves in another type than that of messages",
                rank_);
        slots.lock_for_reading(op.slot);
        return bytes;
    }

    std::span<std::byte> incoming(const Op& op) override {
        auto& slots = slots_of(op.payload);
        const auto bytes = slots.write(op.slot, op.owner, op.heads);
        slots.lock_for_writing(op.slot);
        return arrives_narrow(op) ? arrival_part(bytes) : bytes;
    }

    void transfer_ended(const Op& op) override {
        auto& slots = slots_of(op.payload);
        slots.release(op.slot, op.kind == OpKind::send);
        if (op.kind == OpKind::send || !arrives_narrow(op)) return;
        const auto bytes = slots.write(op.slot, op.owner, op.heads);
        const auto arrived = arrival_part(bytes);
        const Bytes narrow(arrived.begin(), arrived.end());
        load_elements<Real>(narrow, pass_->options().gradient_dtype, reals(bytes));
    }

    std::size_t exposed_offset(const Op& op) const override { return kv_->own_offset(op.owner, op.heads); }

    void collect(RankResult& result) const override {
        const auto widen = [](const std::vector<Real>& from) { return std::vector<double>(from.begin(), from.end()); };
        result.o_unrounded = widen(result_.o.numbers());
        result.o = result.o_unrounded;
        round_in_place(std::span(result.o), problem_.dtype);
        result.lse = widen(result_.maximum.numbers());
        result.dq = widen(dq_.numbers());
        split_gradient(result.dk, result.dv);
        result.scratch_bytes = scratch_bytes_;
        result.workspace_bytes = workspace_bytes_;
    }

private:
    static constexpr DType native_dtype = sizeof(Real) == 8 ? DType::fp64 : DType::fp32;

    /// K and V of one head and batch element, or their gradients.
    template <class Element>
    struct Block {
        MatrixView<Element> k, v;
    };

    bool backward() const { return pass_->options().pass == Pass::backward; }
    std::int64_t rows() const { return static_cast<std::int64_t>(positions_.size()); }
    std::int64_t group() const { return problem_.query_heads_per_kv_head(); }
    SlotSet& slots_of(Payload payload) { return payload == Payload::kv ? *kv_ : *gradients_; }
    DType gradient_dtype(int slot) const { return slot == 0 ? native_dtype : pass_->options().gradient_dtype; }

    static std::span<Real> reals(std::span<std::byte> bytes) {
        return {reinterpret_cast<Real*>(bytes.data()), bytes.size() / sizeof(Real)};
    }

    /// The runs by which the mask is asked about a shard.
    std::span<const Run> mask_runs(int owner, std::vector<Run>& local) const {
        if (options_.mutation != Mutation::local_mask_coordinates) return layout_.shard(owner);
        local = {Run{0, 1, layout_.shard_tokens(owner)}};
        return local;
    }

    void load_rows(const Tensor& global, std::int64_t width, Rows<Real>& out) const {
        out.assign(problem_.query_heads, problem_.batch, rows(), width, 0);
        const auto numbers = scatter(global, positions_);
        std::copy(numbers.begin(), numbers.end(), out.numbers().begin());
        round_in_place(std::span(out.numbers()), problem_.dtype);
    }

    /// K/V slot 0, head by head: K (batch, tokens, head_dim), then V (batch, tokens, value_dim).
    void load_own_block() {
        const auto k = scatter(inputs_.k, positions_), v = scatter(inputs_.v, positions_);
        const auto k_head = k.size() / size(problem_.kv_heads), v_head = v.size() / size(problem_.kv_heads);
        std::vector<Real> head(k_head + v_head);
        for (int h = 0; h < problem_.kv_heads; ++h) {
            const auto index = static_cast<std::size_t>(h);
            std::copy_n(k.begin() + static_cast<std::ptrdiff_t>(index * k_head), k_head, head.begin());
            std::copy_n(v.begin() + static_cast<std::ptrdiff_t>(index * v_head), v_head,
                        head.begin() + static_cast<std::ptrdiff_t>(k_head));
            store_elements<Real>(head, problem_.dtype, kv_->write(0, rank_, {h, h + 1}));
        }
    }

    /// One kv head of the block that `op` attends to, all batch elements, widened to Real if need be.
    std::span<const Real> load_head(const Op& op, int head) {
        const bool stale = options_.mutation == Mutation::stale_block && backward();
        const auto memory =
            stale ? kv_->read(0, rank_, {head, head + 1}) : kv_->read(op.slot, op.owner, {head, head + 1});
        if (problem_.dtype == native_dtype) return reals(memory);
        block_.resize(memory.size() / size(layouts::bytes_of(problem_.dtype)));
        load_elements<Real>(memory, problem_.dtype, block_);
        return block_;
    }

    template <class Element>
    Block<Element> block(std::span<Element> head, std::int64_t tokens, std::int64_t batch) const {
        const auto k_count = problem_.batch * tokens * problem_.head_dim;
        return {{head.data() + batch * tokens * problem_.head_dim, tokens, problem_.head_dim, problem_.head_dim},
                {head.data() + k_count + batch * tokens * problem_.value_dim, tokens, problem_.value_dim,
                 problem_.value_dim}};
    }

    /// Calls visit(kv head's block, query head, batch element) for all that an attend is about.
    template <class Visit>
    void for_each_head(const Op& op, int head, Visit visit) {
        const auto numbers = load_head(op, head);
        const auto tokens = layout_.shard_tokens(op.owner);
        for (std::int64_t b = 0; b < problem_.batch; ++b)
            for (std::int64_t g = 0; g < group(); ++g) visit(block(numbers, tokens, b), head * group() + g, b);
    }

    KeyPlan key_plan(const Op& op) const {
        std::vector<Run> local;
        return plan_keys(mask_, mask_runs(op.owner, local), options_.tiles);
    }

    /// Takes the block of `op` into `state`, whose first query head is `first_head`.
    void take_in(const Op& op, const KeyPlan& keys, Partial<Real>& state, std::int64_t first_head) {
        for (int head = op.heads.begin; head < op.heads.end; ++head)
            for_each_head(op, head, [&](const Block<const Real>& kv, std::int64_t query_head, std::int64_t b) {
                attention_.forward(row_plan_, keys, q_.matrix(query_head, b), kv.k, kv.v,
                                   state.state(query_head - first_head, b));
            });
    }

    void finish(Partial<Real>& state, std::int64_t begin, std::int64_t end) {
        for (auto head = begin; head < end; ++head)
            for (std::int64_t b = 0; b < problem_.batch; ++b) BlockAttention<Real>::finish(state.state(head, b));
        if (options_.mutation == Mutation::plus_infinity_for_empty_rows)
            for (auto& lse : state.maximum.numbers()) lse = std::isinf(lse) ? -lse : lse;
    }

    void attend_forward(const Op& op) {
        const auto keys = key_plan(op);
        if (pass_->options().accumulation == layouts::Accumulation::carry) return take_in(op, keys, result_, 0);
        require(!pending_merge_, "rank {}: step {} attends before the partial result of rank {}'s block is merged",
                rank_, op.step, pending_merge_.value_or(op).owner);
        attend_partial(op, keys);
        round_in_place(std::span(partial_.o.numbers()), problem_.dtype);
        pending_merge_ = op;
    }

    void attend_partial(const Op& op, const KeyPlan& keys) {
        const auto heads = op.heads.count() * group();
        partial_.reset(heads, problem_.batch, rows(), problem_.value_dim);
        take_in(op, keys, partial_, op.heads.begin * group());
        finish(partial_, 0, heads);
    }

    /// w = sigmoid(lse_b - lse); o += w*(o_b - o); lse += softplus(lse_b - lse). Neither overflows for any difference;
    /// a row that saw nothing, here or there, has nothing to merge.
    void merge(const Op& op) {
        require(pending_merge_ && pending_merge_->owner == op.owner && pending_merge_->heads == op.heads,
                "rank {}: step {} merges rank {}'s partial result, which is not the last that was made", rank_, op.step,
                op.owner);
        pending_merge_.reset();
        constexpr auto empty = -std::numeric_limits<Real>::infinity();
        const auto first = op.heads.begin * group();
        for (auto head = first; head < op.heads.end * group(); ++head)
            for (std::int64_t b = 0; b < problem_.batch; ++b) {
                const auto o = result_.o.matrix(head, b), o_b = partial_.o.matrix(head - first, b);
                const auto lses = result_.maximum.vector(head, b), lses_b = partial_.maximum.vector(head - first, b);
                for (std::int64_t row = 0; row < rows(); ++row) {
                    auto& lse = lses[size(row)];
                    const Real lse_b = lses_b[size(row)];
                    if (lse_b == empty) continue;
                    const Real difference = lse_b - lse;
                    const Real weight = lse == empty ? Real(1) : 1 / (1 + std::exp(-difference));
                    for (std::int64_t d = 0; d < o.columns; ++d)
                        o.row(row)[d] += weight * (o_b.row(row)[d] - o.row(row)[d]);
                    lse = lse == empty
                              ? lse_b
                              : lse + std::max(difference, Real(0)) + std::log1p(std::exp(-std::abs(difference)));
                }
                if (options_.round_running_output) round_in_place(result_.o.vector(head, b), problem_.dtype);
            }
    }

    void prepare_backward() {
        load_rows(inputs_.dout, problem_.value_dim, dout_);
        dq_.assign(problem_.query_heads, problem_.batch, rows(), problem_.head_dim, 0);
        delta_.assign(problem_.query_heads, problem_.batch, rows(), 1, 0);
        set_delta(result_.o, 0, 0, problem_.query_heads, delta_);
    }

    /// delta = dout.o of `heads` heads; `o` begins with head `first_head`.
    void set_delta(Rows<Real>& o, std::int64_t first_head, std::int64_t begin, std::int64_t end, Rows<Real>& delta) {
        for (auto head = begin; head < end; ++head)
            for (std::int64_t b = 0; b < problem_.batch; ++b) {
                const auto outputs = o.matrix(head - first_head, b), douts = dout_.matrix(head, b);
                for (std::int64_t row = 0; row < rows(); ++row) {
                    Real sum = 0;
                    for (std::int64_t d = 0; d < outputs.columns; ++d) sum += douts.row(row)[d] * outputs.row(row)[d];
                    delta.vector(head - first_head, b)[size(row)] = sum;
                }
            }
    }

    void attend_backward(const Op& op) {
        const auto keys = key_plan(op);
        const auto tokens = layout_.shard_tokens(op.owner);
        auto* lse = &result_.maximum;
        auto* delta = &delta_;
        std::int64_t first_head = 0;
        if (options_.mutation == Mutation::per_block_statistics) {
            first_head = op.heads.begin * group();
            attend_partial(op, keys);
            block_delta_.assign(op.heads.count() * group(), problem_.batch, rows(), 1, 0);
            set_delta(partial_.o, first_head, first_head, op.heads.end * group(), block_delta_);
            lse = &partial_.maximum;
            delta = &block_delta_;
        }
        const auto slot = gradients_->write(op.gradient_slot, op.owner, op.heads);
        const auto head_bytes = slot.size() / size(op.heads.count());
        for (int head = op.heads.begin; head < op.heads.end; ++head) {
            gradient_.assign(size(problem_.batch * tokens * (problem_.head_dim + problem_.value_dim)), 0);
            for_each_head(op, head, [&](const Block<const Real>& kv, std::int64_t query_head, std::int64_t b) {
                const auto gradient = block(std::span(gradient_), tokens, b);
                attention_.backward(
                    row_plan_, keys,
                    {q_.matrix(query_head, b), dout_.matrix(query_head, b), lse->vector(query_head - first_head, b),
                     delta->vector(query_head - first_head, b), dq_.matrix(query_head, b)},
                    kv.k, kv.v, gradient.k, gradient.v);
            });
            store_elements<Real>(gradient_, gradient_dtype(op.gradient_slot),
                                 slot.subspan(size(head - op.heads.begin) * head_bytes, head_bytes));
        }
    }

    void add(const Op& op) {
        const auto from = gradients_->read(op.gradient_slot, op.owner, op.heads);
        const auto sum = gradients_->change(op.slot, op.owner, op.heads);
        const auto count = from.size() / size(layouts::bytes_of(gradient_dtype(op.gradient_slot)));
        gradient_.resize(count);
        block_.resize(count);
        load_elements<Real>(from, gradient_dtype(op.gradient_slot), block_);
        load_elements<Real>(sum, gradient_dtype(op.slot), gradient_);
        for (std::size_t i = 0; i < count; ++i) gradient_[i] += block_[i];
        store_elements<Real>(gradient_, gradient_dtype(op.slot), sum);
    }

    /// Whether a transfer into or out of the rank's own dK/dV has elements of another size than it is kept in.
    bool arrives_narrow(const Op& op) const {
        return op.payload == Payload::dkv && op.slot == 0 && pass_->options().gradient_dtype != native_dtype;
    }

    /// The end of a wide buffer, where narrow elements arrive.
    std::span<std::byte> arrival_part(std::span<std::byte> wide) const {
        return wide.last(wide.size() / sizeof(Real) * size(layouts::bytes_of(pass_->options().gradient_dtype)));
    }

    /// From slot 0, head by head, to (heads, batch, tokens, dim) each.
    void split_gradient(std::vector<double>& dk, std::vector<double>& dv) const {
        if (own_gradient_.empty()) return;
        std::vector<Real> numbers(own_gradient_.size() / sizeof(Real));
        load_elements<Real>(own_gradient_, native_dtype, numbers);
        const auto dk_head = problem_.batch * rows() * problem_.head_dim;
        const auto dv_head = problem_.batch * rows() * problem_.value_dim;
        auto at = numbers.begin();
        for (std::int64_t head = 0; head < problem_.kv_heads; ++head) {
            dk.insert(dk.end(), at, at + dk_head);
            at += dk_head;
            dv.insert(dv.end(), at, at + dv_head);
            at += dv_head;
        }
    }

    void note_workspace() {
        const auto bytes = static_cast<std::int64_t>((block_.size() + gradient_.size()) * sizeof(Real));
        workspace_bytes_ = std::max(workspace_bytes_, bytes + attention_.workspace_bytes() + partial_.bytes());
    }

    const layouts::Problem& problem_;
    const layouts::Layout& layout_;
    const layouts::Mask& mask_;
    const int rank_;
    const Inputs& inputs_;
    const CpuOptions& options_;
    const std::vector<std::int64_t> positions_;
    std::vector<Run> own_runs_;
    BlockAttention<Real> attention_;
    RowPlan row_plan_;

    Rows<Real> q_, dout_, dq_, delta_, block_delta_;
    Partial<Real> result_;
    Partial<Real> partial_;            // of the last attend, with Accumulation::partials
    std::optional<Op> pending_merge_;  // the attend whose partial is not merged yet
    std::vector<Real> block_;          // a kv head widened to Real
    std::vector<Real> gradient_;       // its gradient before it goes to a slot
    Bytes own_gradient_;

    const Schedule* pass_ = nullptr;
    std::optional<SlotSet> kv_, gradients_;
    std::int64_t scratch_bytes_ = 0;
    std::int64_t workspace_bytes_ = 0;
};

}  // namespace

std::unique_ptr<CpuRank> make_cpu_rank(const Schedule& schedule, int rank, const Inputs& inputs,
                                       const CpuOptions& options) {
    if (schedule.problem().dtype == DType::fp64)
        return std::make_unique<TypedRank<double>>(schedule, rank, inputs, options);
    return std::make_unique<TypedRank<float>>(schedule, rank, inputs, options);
}

}  // namespace ringlab::reference
