#include "reference/ranks/cpu_rank.hpp"

#include "reference/features/latent.hpp"
#include "reference/features/rotary.hpp"
#include "reference/features/sinks.hpp"
#include "reference/ranks/cpu_slots.hpp"
#include "reference/ranks/executor.hpp"
#include "reference/tensors/rounding.hpp"
#include "reference/tensors/shards.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

namespace ringlab::reference {
namespace {

using layouts::DType;
using layouts::Instruction;
using layouts::Op;
using layouts::OpKind;
using layouts::Part;
using layouts::Pass;
using layouts::Pool;
using layouts::Run;
using layouts::Schedule;

// Fields of pools, see CpuSlots.
constexpr std::size_t value_field = 1;         // of kv, dkv
constexpr std::size_t lse_field = 1;           // of output, dout
constexpr std::size_t delta_field = 2;         // of dout
constexpr std::size_t maximum = 1, total = 2;  // of state

/// A rank's part of whole tensors.
class CutInputs : public RankInputs {
public:
    CutInputs(const Schedule& schedule, int rank, const Inputs& inputs)
        : inputs_(inputs), positions_(schedule.layout().positions(rank)), rows_(schedule.row_indices(rank)) {}

    std::vector<double> q() const override { return scatter(inputs_.q, rows_); }
    std::vector<double> k() const override { return scatter(inputs_.k, positions_); }
    std::vector<double> v() const override { return scatter(inputs_.v, positions_); }
    std::vector<double> dout() const override { return scatter(inputs_.dout, rows_); }
    const Tensor& matrices() const override { return inputs_.v; }

private:
    const Inputs& inputs_;
    const std::vector<std::int64_t> positions_, rows_;
};

template <class Real>
class TypedRank : public CpuRank {
public:
    TypedRank(const Schedule& schedule, int rank, std::unique_ptr<const RankInputs> inputs,
              const layouts::Problem& problem, const CpuOptions& options)
        : problem_(problem),
          rank_(rank),
          inputs_(std::move(inputs)),
          options_(options),
          positions_(schedule.layout().positions(rank)),
          row_positions_(schedule.row_positions(rank)),
          attention_(problem_, options.tiles),
          slots_(problem_, static_cast<std::int64_t>(row_positions_.size()), schedule.layout().shard_tokens(rank)),
          pass_(&schedule) {
        for (const auto pool : {Pool::q, Pool::kv, Pool::latent, Pool::state, Pool::output})
            if (schedule.keeps(pool)) slots_.make_own(pool);
        if (problem_.latent.is_given())
            matrices_.emplace(problem_, inputs_->matrices());
        else
            load(inputs_->v(), Pool::kv, value_field);
        auto q = inputs_->q(), k = inputs_->k();
        rotate(q, k, Pass::forward, Rotation::Way::ahead);
        load(std::move(q), Pool::q);
        load(std::move(k), given_keys());
    }

    void begin(const Schedule& pass, const layouts::Program& program) override {
        pass_ = &pass;
        slots_.begin(pass);
        scratch_bytes_ = std::max(scratch_bytes_, pass.scratch_bytes());
        messages_.assign(size(pass.lanes()), {});
        exposed_.clear();
        if (program.fetches()) slots_.pack(own(given_keys()), exposed_);
        if (backward())
            prepare_backward();
        else
            set_empty(own(Pool::output));
    }

    void resume(const std::vector<double>& o_unrounded, const std::vector<double>& lse) override {
        store(o_unrounded, Pool::output, 0);
        store(lse, Pool::output, lse_field);
    }

    void end() override {
        if (!backward()) add_sinks();
        update_workspace_bytes();
        slots_.drop_scratch();
    }

    std::span<const std::byte> exposed() override { return exposed_; }

    void compute(const Instruction& instruction) override {
        switch (instruction.op.kind) {
            case OpKind::attend: backward() ? attend_backward(instruction) : attend_forward(instruction); break;
            case OpKind::merge: merge(instruction); break;
            case OpKind::add: add(instruction); break;
            case OpKind::copy: copy(instruction); break;
            case OpKind::expand: expand(instruction); break;
            case OpKind::compress: compress(instruction); break;
            case OpKind::send:
            case OpKind::receive:
            case OpKind::fetch: fail("rank {}: a {} is not a compute operation", rank_, to_string(instruction.op.kind));
        }
    }

    std::span<const std::byte> outgoing(const Instruction& instruction) override {
        auto& message = messages_[size(instruction.op.lane())];
        slots_.pack(place(instruction), message);
        return message;
    }

    std::span<std::byte> incoming(const Instruction& instruction) override {
        auto& message = messages_[size(instruction.op.lane())];
        message.resize(size(instruction.op.bytes));
        return message;
    }

    void transfer_ended(const Instruction& instruction) override {
        if (!instruction.sends()) slots_.unpack(place(instruction), messages_[size(instruction.op.lane())]);
    }

    std::size_t exposed_offset(const Instruction& instruction) const override {
        const auto& part = instruction.op.part;
        require(pass_->is_whole(part), "rank {}: a fetch must be of all tokens of a block", rank_);
        return size(pass_->bytes(given_keys(), 0, {part.block, {0, part.heads.begin}, part.tokens}));
    }

    void collect(RankResult& result) override {
        result.o_unrounded = own_field(Pool::output, 0);
        result.o = result.o_unrounded;
        round_in_place(std::span(result.o), problem_.dtype);
        result.lse = own_field(Pool::output, lse_field);
        if (has_gradients_) {
            result.dq = own_field(Pool::dq, 0);
            result.dk = own_field(matrices_ ? Pool::dlatent : Pool::dkv, 0);
            result.dv = matrices_ ? matrices_->gradient() : own_field(Pool::dkv, value_field);
            rotate(result.dq, result.dk, Pass::backward, Rotation::Way::back);
            result.dsinks = sink_gradient();
        }
        result.rotation_seconds = rotation_seconds_;
        result.own_bytes = slots_.own_bytes() + (matrices_ ? matrices_->bytes() : 0);
        result.scratch_bytes = scratch_bytes_;
        result.workspace_bytes = workspace_bytes_;
    }

private:
    bool backward() const { return pass_->options().pass == Pass::backward; }
    std::int64_t group() const { return problem_.query_heads_per_kv_head(); }
    Pool given_keys() const { return problem_.latent.is_given() ? Pool::latent : Pool::kv; }

    Place place(const Instruction& instruction) const { return place(instruction, instruction.op.pool); }
    Place place(const Instruction& instruction, Pool pool) const { return place_of(*pass_, instruction, pool); }
    Place source(const Instruction& instruction) const { return source_of(*pass_, instruction); }
    Place own(Pool pool) const { return own_place(*pass_, rank_, pool); }

    /// Rotates queries and keys, or their gradients, in the order of scatter().
    void rotate(std::vector<double>& of_rows, std::vector<double>& of_keys, Pass pass, Rotation::Way way) {
        if (!problem_.rotary.rotates()) return;
        const auto begin = thread_cpu_time();
        for (const auto& [shard, own] : {std::pair(&of_rows, &row_positions_), std::pair(&of_keys, &positions_)})
            rotate_shard(*shard, *own, shard == &of_rows ? problem_ : key_problem_, pass_->mask(), way);
        rotation_seconds_[static_cast<std::size_t>(pass)] = layouts::to_seconds(thread_cpu_time() - begin);
    }

    /// load() writes a field of slot 0, own_field() reads it; `numbers` are (heads, batch, local tokens, width).
    void load(std::vector<double> numbers, Pool pool, std::size_t field = 0) {
        // Rounded here, because a conversion to float first would round twice.
        round_in_place(std::span(numbers), problem_.dtype);
        store(numbers, pool, field);
    }
    void store(const std::vector<double>& numbers, Pool pool, std::size_t field) {
        auto from = numbers.begin();
        for_each_own(slots_, pool, field, [&](const MatrixView<Real>& to) {
            const auto count = size(to.rows * to.columns);
            require(count <= size(numbers.end() - from), "rank {}: {} numbers were given for {}, too few", rank_,
                    numbers.size(), to_string(pool));
            std::copy_n(from, count, to.data);
            from += static_cast<std::ptrdiff_t>(count);
        });
        require(from == numbers.end(), "rank {}: {} numbers were given for {}, too many", rank_, numbers.size(),
                to_string(pool));
    }
    std::vector<double> own_field(Pool pool, std::size_t field) const {
        std::vector<double> numbers;
        for_each_own(slots_, pool, field, [&](const MatrixView<const Real>& from) {
            numbers.insert(numbers.end(), from.data, from.data + from.rows * from.columns);
        });
        return numbers;
    }
    template <class Slots, class Visit>
    void for_each_own(Slots& slots, Pool pool, std::size_t field, Visit visit) const {
        const auto all = own(pool);
        for_each_head(all.heads, [&](int head, std::int64_t b) { visit(slots.matrix(all, head, b, field)); });
    }

    template <class Visit>
    void for_each_head(const layouts::HeadRange& heads, Visit visit) const {
        for (int head = heads.begin; head < heads.end; ++head)
            for (std::int64_t b = 0; b < problem_.batch; ++b) visit(head, b);
    }

    // ---- Plans ----

    using TilingKey = std::tuple<int, std::int64_t, std::int64_t>;
    static TilingKey key_of(const Part& part) { return {part.block, part.tokens.begin, part.tokens.end}; }

    const RowTiling& row_tiling(const Part& part) {
        const auto [entry, is_new] = row_tilings_.try_emplace(key_of(part));
        if (is_new) entry->second = tile_rows_of(pass_->mask(), pass_->runs(part), options_.tiles);
        return entry->second;
    }

    KeyTiling key_tiling(const Part& part) const {
        return tile_keys_of(pass_->mask(), pass_->runs(part), options_.tiles);
    }

    // ---- Forward ----

    typename BlockAttention<Real>::Softmax softmax(const Place& state, int head, std::int64_t batch) {
        return {slots_.matrix(state, head, batch), slots_.vector(state, head, batch, maximum),
                slots_.vector(state, head, batch, total)};
    }

    void attend_forward(const Instruction& instruction) {
        const auto& op = instruction.op;
        const auto& tiling = row_tiling(op.rows());
        const auto keys = key_tiling(op.part);
        const auto q = place(instruction, Pool::q), kv = place(instruction, Pool::kv);
        const auto state = place(instruction, Pool::state), output = place(instruction, Pool::output);
        for_each_head(op.rows().heads, [&](int head, std::int64_t b) {
            const bool only = op.begins && op.ends;
            const auto softmax = only ? whole_softmax(op.rows().tokens.size()) : this->softmax(state, head, b);
            if (op.begins) reset(softmax);
            const int kv_head = head / static_cast<int>(group());
            attention_.forward(tiling, keys, {b, head}, slots_.matrix(q, head, b), slots_.matrix(kv, kv_head, b),
                               slots_.matrix(kv, kv_head, b, value_field), softmax);
            if (!op.ends) return;
            BlockAttention<Real>::finish(softmax);
            const auto o = slots_.matrix(output, head, b);
            std::copy_n(softmax.o.data, o.rows * o.columns, o.data);
            std::ranges::copy(softmax.maximum, slots_.vector(output, head, b, lse_field).begin());
        });
        if (op.ends && output.slot > 0) slots_.round(output);
    }

    /// Space for the running softmax of rows that begin and end in the same attend.
    typename BlockAttention<Real>::Softmax whole_softmax(std::int64_t rows) {
        const auto dim = problem_.value_dim;
        softmax_.resize(size(rows * (dim + 2)));
        const std::span<Real> statistics(softmax_.data() + rows * dim, size(2 * rows));
        return {{softmax_.data(), rows, dim, dim}, statistics.first(size(rows)), statistics.last(size(rows))};
    }

    static void clear(const MatrixView<Real>& matrix) {
        std::fill_n(matrix.data, matrix.rows * matrix.columns, Real(0));
    }

    static void reset(const typename BlockAttention<Real>::Softmax& softmax) {
        clear(softmax.o);
        std::ranges::fill(softmax.maximum, -std::numeric_limits<Real>::infinity());
        std::ranges::fill(softmax.sum, Real(0));
    }

    void set_empty(const Place& output) {
        for_each_head(output.heads, [&](int head, std::int64_t b) {
            clear(slots_.matrix(output, head, b));
            std::ranges::fill(slots_.vector(output, head, b, lse_field), -std::numeric_limits<Real>::infinity());
        });
    }

    /// w = sigmoid(lse_b - lse); o += w*(o_b - o); lse += softplus(lse_b - lse). Neither overflows, whatever the
    /// difference. If a row saw no key in one of the two parts, the result is the other part.
    void merge(const Instruction& instruction) {
        const auto to = place(instruction), from = source(instruction);
        if (instruction.op.begins) set_empty(to);
        constexpr auto empty = -std::numeric_limits<Real>::infinity();
        for_each_head(to.heads, [&](int head, std::int64_t b) {
            const auto o = slots_.matrix(to, head, b), o_b = slots_.matrix(from, head, b);
            const auto lses = slots_.vector(to, head, b, lse_field), lses_b = slots_.vector(from, head, b, lse_field);
            for (std::int64_t row = 0; row < o.rows; ++row) {
                auto& lse = lses[size(row)];
                const Real lse_b = lses_b[size(row)];
                if (lse_b == empty) continue;
                const Real difference = lse_b - lse;
                const Real weight = lse == empty ? Real(1) : 1 / (1 + std::exp(-difference));
                for (std::int64_t d = 0; d < o.columns; ++d)
                    o.row(row)[d] += weight * (o_b.row(row)[d] - o.row(row)[d]);
                lse = lse == empty ? lse_b
                                   : lse + std::max(difference, Real(0)) + std::log1p(std::exp(-std::abs(difference)));
            }
        });
        if (options_.round_running_output) slots_.round(to);
    }

    /// After the last merge: lse' = log(exp(lse) + exp(s)) and o' = o exp(lse - lse') for the rank's rows.
    void add_sinks() {
        if (problem_.sinks.empty()) return;
        const auto output = own(Pool::output);
        for_each_head(output.heads, [&](int head, std::int64_t b) {
            const auto o = slots_.matrix(output, head, b);
            const auto lses = slots_.vector(output, head, b, lse_field);
            const auto sink = static_cast<Real>(problem_.sinks[size(head)]);
            for (std::int64_t row = 0; row < o.rows; ++row) {
                auto& lse = lses[size(row)];
                const Real with = lse_with_sink(lse, sink), share = share_beside_sink(lse, with);
                for (std::int64_t d = 0; d < o.columns; ++d) o.row(row)[d] *= share;
                lse = with;
            }
        });
    }

    // ---- Backward ----

    /// ds = -sum over the rank's rows of exp(s - lse') delta.
    std::vector<double> sink_gradient() {
        std::vector<double> gradient(problem_.sinks.size());
        if (gradient.empty()) return gradient;
        const auto dout = own(Pool::dout);
        for_each_head(dout.heads, [&](int head, std::int64_t b) {
            const auto lses = slots_.vector(dout, head, b, lse_field);
            const auto deltas = slots_.vector(dout, head, b, delta_field);
            const auto sink = static_cast<Real>(problem_.sinks[size(head)]);
            for (std::size_t row = 0; row < lses.size(); ++row)
                gradient[size(head)] -= static_cast<double>(share_of_sink(sink, lses[row]) * deltas[row]);
        });
        return gradient;
    }

    void prepare_backward() {
        for (const auto pool : {Pool::dout, Pool::dq, Pool::dkv, Pool::dlatent})
            if (pass_->keeps(pool)) slots_.make_own(pool);
        if (matrices_) matrices_->begin_gradient();
        has_gradients_ = true;
        load(inputs_->dout(), Pool::dout);
        const auto dout = own(Pool::dout), output = own(Pool::output);
        for_each_head(dout.heads, [&](int head, std::int64_t b) {
            std::ranges::copy(slots_.vector(output, head, b, lse_field),
                              slots_.vector(dout, head, b, lse_field).begin());
            set_delta(slots_.matrix(dout, head, b), slots_.matrix(output, head, b),
                      slots_.vector(dout, head, b, delta_field));
        });
    }

    /// delta = dout.o. A row that sees nothing has o = 0 and delta 0, whatever is in its dout.
    static void set_delta(const MatrixView<Real>& dout, const MatrixView<Real>& o, std::span<Real> delta) {
        for (std::int64_t row = 0; row < dout.rows; ++row) {
            Real sum = 0;
            for (std::int64_t d = 0; d < dout.columns; ++d)
                if (o.row(row)[d] != 0) sum += dout.row(row)[d] * o.row(row)[d];
            delta[size(row)] = sum;
        }
    }

    void attend_backward(const Instruction& instruction) {
        const auto& op = instruction.op;
        const auto& tiling = row_tiling(op.rows());
        const auto keys = key_tiling(op.part);
        const auto q = place(instruction, Pool::q), dout = place(instruction, Pool::dout);
        const auto dq = place(instruction, Pool::dq), dkv = place(instruction, Pool::dkv);
        const auto kv = place(instruction, Pool::kv);
        if (!op.adds)
            for_each_head(op.part.heads, [&](int head, std::int64_t b) {
                for (const auto field : {std::size_t{0}, value_field}) clear(slots_.matrix(dkv, head, b, field));
            });
        for_each_head(op.rows().heads, [&](int head, std::int64_t b) {
            const int kv_head = head / static_cast<int>(group());
            const auto k = slots_.matrix(kv, kv_head, b), v = slots_.matrix(kv, kv_head, b, value_field);
            const auto gradient = slots_.matrix(dq, head, b);
            if (op.begins) clear(gradient);
            const auto lse = slots_.vector(dout, head, b, lse_field);
            const auto delta = slots_.vector(dout, head, b, delta_field);
            attention_.backward(tiling, keys, {b, head},
                                {slots_.matrix(q, head, b), slots_.matrix(dout, head, b), lse, delta, gradient}, k, v,
                                slots_.matrix(dkv, kv_head, b), slots_.matrix(dkv, kv_head, b, value_field));
        });
        if (dkv.slot > 0) slots_.round(dkv);
        if (dq.slot > 0) slots_.round(dq);
    }

    void add(const Instruction& instruction) {
        const auto to = place(instruction);
        for_each_field(to, source(instruction), [](Real& sum, Real part) { sum += part; });
        if (to.slot > 0) slots_.round(to);
    }

    void copy(const Instruction& instruction) {
        const auto to = place(instruction);
        for_each_field(to, source(instruction), [](Real& target, Real part) { target = part; });
        if (to.slot > 0) slots_.round(to);
    }

    // ---- A latent ----

    void expand(const Instruction& instruction) {
        const auto to = place(instruction), from = source(instruction);
        for_each_head(to.heads, [&](int head, std::int64_t b) {
            matrices_->expand(head, slots_.matrix(from, 0, b), slots_.matrix(to, head, b),
                              slots_.matrix(to, head, b, value_field));
        });
        slots_.round(to);
    }

    void compress(const Instruction& instruction) {
        const auto to = place(instruction), latent = place(instruction, Pool::latent), from = source(instruction);
        if (!instruction.op.adds) for_each_head(to.heads, [&](int, std::int64_t b) { clear(slots_.matrix(to, 0, b)); });
        for_each_head(from.heads, [&](int head, std::int64_t b) {
            matrices_->compress(head, slots_.matrix(from, head, b), slots_.matrix(from, head, b, value_field),
                                slots_.matrix(latent, 0, b), slots_.matrix(to, 0, b));
        });
        if (to.slot > 0) slots_.round(to);
    }

    template <class Combine>
    void for_each_field(const Place& to, const Place& from, Combine combine) {
        for_each_head(to.heads, [&](int head, std::int64_t b) {
            for (std::size_t field = 0; field < slots_.fields(to.pool); ++field) {
                const auto target = slots_.matrix(to, head, b, field), source = slots_.matrix(from, head, b, field);
                for (std::int64_t i = 0; i < target.rows * target.columns; ++i) combine(target.data[i], source.data[i]);
            }
        });
    }

    /// Updates workspace_bytes_: all memory besides own tensors and the scratch slots as the schedule counts them.
    void update_workspace_bytes() {
        auto bytes = slots_.scratch_bytes() - pass_->scratch_bytes() + attention_.workspace_bytes() +
                     static_cast<std::int64_t>(exposed_.capacity());
        for (const auto& message : messages_) bytes += static_cast<std::int64_t>(message.capacity());
        bytes += static_cast<std::int64_t>(softmax_.capacity() * sizeof(Real));
        if (matrices_) bytes += matrices_->workspace_bytes();
        workspace_bytes_ = std::max(workspace_bytes_, bytes);
    }

    const layouts::Problem problem_;
    const layouts::Problem key_problem_ = problem_.with_latent_as_key();
    const int rank_;
    const std::unique_ptr<const RankInputs> inputs_;
    const CpuOptions& options_;
    const std::vector<std::int64_t> positions_;      // of K, V
    const std::vector<std::int64_t> row_positions_;  // of Q
    BlockAttention<Real> attention_;
    CpuSlots<Real> slots_;
    std::optional<LatentMatrices<Real>> matrices_;
    std::map<TilingKey, RowTiling> row_tilings_;
    std::vector<Real> softmax_;
    std::vector<Bytes> messages_;  // by lane: message of the transfer that is under way
    Bytes exposed_;

    const Schedule* pass_;
    bool has_gradients_ = false;
    std::array<double, 2> rotation_seconds_{};  // by pass
    std::int64_t scratch_bytes_ = 0;
    std::int64_t workspace_bytes_ = 0;
};

}  // namespace

std::unique_ptr<CpuRank> make_cpu_rank(const Schedule& schedule, int rank, const Inputs& inputs,
                                       const CpuOptions& options) {
    return make_cpu_rank(schedule, rank, std::make_unique<CutInputs>(schedule, rank, inputs), schedule.problem(),
                         options);
}

std::unique_ptr<CpuRank> make_cpu_rank(const Schedule& schedule, int rank, std::unique_ptr<const RankInputs> inputs,
                                       const layouts::Problem& problem, const CpuOptions& options) {
    if (problem.dtype == DType::fp64)
        return std::make_unique<TypedRank<double>>(schedule, rank, std::move(inputs), problem, options);
    return std::make_unique<TypedRank<float>>(schedule, rank, std::move(inputs), problem, options);
}

}  // namespace ringlab::reference
