#include "tests/mistakes/mistakes.hpp"

#include "experiments/study/decoding.hpp"
#include "reference/features/rotary.hpp"
#include "reference/ranks/cpu_backend.hpp"
#include "reference/ranks/transport.hpp"
#include "reference/tensors/rounding.hpp"
#include "tests/reference/wrapped_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <limits>

namespace ringlab::experiments {
namespace {

using layouts::Pass;
using reference::Rotation;
using reference::Tensor;

void add_to(Tensor& sum, const Tensor& other) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum.data()[i] += other.data()[i];
}

void scale_by(Tensor& tensor, double factor) {
    for (auto& x : tensor) x *= factor;
}

/// The mask restricted to the keys that one rank owns.
layouts::Mask keys_of_rank_alone(const Plan& plan, int rank) {
    const auto& mask = plan.mask();
    auto own = plan.layout().positions(rank);
    std::ranges::sort(own);
    std::vector<layouts::Interval> valid;
    for (const auto key : own) {
        if (!mask.key_is_valid(key)) continue;
        if (!valid.empty() && valid.back().end == key)
            ++valid.back().end;
        else
            valid.push_back({key, key + 1});
    }
    return layouts::Mask(fmt::format("{}, keys of rank {}", mask.name(), rank), mask.tokens(), mask.segments(), valid);
}

/// Wraps a schedule so that interpreters make a mistake. A schedule itself cannot make these mistakes, because its
/// rules are checked.
class BrokenSchedule : public layouts::Schedule {
public:
    enum class Break {
        stale_block,  ///< every attend uses the rank's own K and V instead of the block that arrived
        local_mask,   ///< the mask is asked with positions inside the block
    };

    BrokenSchedule(std::unique_ptr<layouts::Schedule> original, Break how)
        : Schedule(original->problem(), original->mask(), original->layout(), original->options()),
          original_(std::move(original)),
          how_(how) {
        set_channels(original_->channels());
        for (const auto& group : original_->slots())
            add_slots(group.pool, group.count, group.heads, group.tokens, group.dtype);
        for (int index = blocks(); index < original_->blocks(); ++index)
            add_block({original_->block(index).begin(), original_->block(index).end()});
    }

    layouts::Ops ops(int rank) const override { return original_->ops(rank); }
    std::vector<layouts::Run> runs(const layouts::Part& part) const override {
        if (how_ != Break::local_mask) return Schedule::runs(part);
        return {{part.tokens.begin, 1, part.tokens.size()}};
    }
    void modify_program(layouts::Program& program) const override {
        if (how_ != Break::stale_block) return;
        for (auto& rank : program.ranks)
            for (auto& instruction : rank.code)
                if (instruction.op.kind == layouts::OpKind::attend) {
                    instruction.op.slot(layouts::Pool::kv) = 0;
                    instruction.first_head[static_cast<std::size_t>(layouts::Pool::kv)] = 0;
                }
    }

private:
    std::unique_ptr<layouts::Schedule> original_;
    Break how_;
};

/// The scene's plan, in which the schedules of these passes have the given mistake.
Plan broken(const Scene& scene, BrokenSchedule::Break how, std::initializer_list<Pass> passes) {
    auto plan = scene.plan_under(scene.plan.mask());
    for (const auto pass : passes) {
        auto& schedule = pass == Pass::forward ? plan.forward : plan.backward;
        schedule = std::make_unique<BrokenSchedule>(std::move(schedule), how);
    }
    return plan;
}

/// 1. Each block's part of the gradients is computed with the lse and o of this block: it comes from a run that sees
/// only this block.
Consequence per_block_statistics(const Scene& scene) {
    auto wrong = scene.right;
    for (auto* gradient : {&wrong.outputs.dq, &wrong.outputs.dk, &wrong.outputs.dv}) scale_by(*gradient, 0);
    for (int block = 0; block < scene.setup.ranks; ++block) {
        const auto part = scene.run(scene.plan_under(keys_of_rank_alone(scene.plan, block)), scene.inputs).outputs;
        add_to(wrong.outputs.dq, part.dq);
        add_to(wrong.outputs.dk, part.dk);
        add_to(wrong.outputs.dv, part.dv);
    }
    return {.results = std::move(wrong)};
}

/// 2. In the backward pass every attend uses the rank's own K and V.
Consequence stale_block(const Scene& scene) {
    return {.results = scene.run(broken(scene, BrokenSchedule::Break::stale_block, {Pass::backward}), scene.inputs)};
}

/// Uses the ring rank of a peer where its global rank is needed.
class MisnumberedTransport : public reference::WrappedTransport {
public:
    using WrappedTransport::WrappedTransport;

    std::unique_ptr<reference::Transfer> send(std::span<const std::byte> from, int peer, int channel) override {
        return WrappedTransport::send(from, group_.ring_rank(peer), channel);
    }
    std::unique_ptr<reference::Transfer> receive(std::span<std::byte> into, int peer, int channel) override {
        return WrappedTransport::receive(into, group_.ring_rank(peer), channel);
    }
};

/// 3. Two rings side by side, on threads. Ranks of the second ring wait for messages that were sent to the first ring.
Consequence misnumbered_peers(const Scene& scene) {
    if (scene.execution.backend != "cpu")
        return {.gate = "time-out",
                .said =
                    "not made on GPUs: ring ranks become global ones in a single place of each backend, below what "
                    "is altered here"};
    const layouts::RingGroup group{scene.setup.ranks, 2, layouts::RingGroup::Placement::consecutive};
    reference::WrappedWorld<MisnumberedTransport> world(std::make_unique<reference::ThreadWorld>(group));
    const std::vector<reference::Inputs> inputs(2, scene.inputs);
    constexpr double wait = 0.5;
    reference::CpuOptions options;
    options.timeout = std::chrono::milliseconds(static_cast<int>(1e3 * wait));
    const auto begin = std::chrono::steady_clock::now();
    std::string said;
    try {
        reference::run(world, *scene.plan.forward, scene.plan.backward.get(), inputs, options);
    } catch (const Error& error) {
        said = error.what();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    return {.gate = "time-out", .measured = said.empty() ? 0 : took.count(), .bound = wait, .said = said};
}

/// 4. q and k are rotated before the run by the wrong positions that `wrong` gives, and dq and dk are rotated back
/// after it.
Consequence rotated_by(const Scene& scene, const std::function<std::int64_t(int rank, std::int64_t place)>& wrong) {
    const auto& problem = scene.plan.problem;
    std::vector<std::int64_t> positions(static_cast<std::size_t>(problem.tokens));
    for (int rank = 0; rank < scene.setup.ranks; ++rank)
        for (std::int64_t place = 0; const auto token : scene.plan.layout().positions(rank))
            positions[static_cast<std::size_t>(token)] = wrong(rank, place++);
    const auto turned = [&](const Tensor& tensor, Rotation::Way way) {
        return reference::rotated(tensor, problem, scene.plan.mask(), way, positions);
    };
    auto inputs = scene.inputs;
    inputs.q = reference::rounded(turned(inputs.q, Rotation::Way::ahead), problem.dtype);
    inputs.k = reference::rounded(turned(inputs.k, Rotation::Way::ahead), problem.dtype);
    auto unrotated = problem;
    unrotated.rotary = {};
    auto results = scene.run(scene.plan_of(unrotated, scene.plan.mask()), inputs);
    results.outputs.dq = turned(results.outputs.dq, Rotation::Way::back);
    results.outputs.dk = turned(results.outputs.dk, Rotation::Way::back);
    return {.results = std::move(results)};
}

Consequence rotary_by_place(const Scene& scene) {
    return rotated_by(scene, [](int, std::int64_t place) { return place; });
}

/// As if a striped layout were spread over a world that is twice as large as the ring.
Consequence rotary_by_world(const Scene& scene) {
    return rotated_by(scene, [&](int rank, std::int64_t place) { return place * 2 * scene.setup.ranks + rank; });
}

/// 4. Nobody rotates dq and dk back: they are those of the rotated q and k.
Consequence gradients_left_rotated(const Scene& scene) {
    auto wrong = scene.right;
    for (auto* gradient : {&wrong.outputs.dq, &wrong.outputs.dk})
        *gradient = reference::rotated(*gradient, scene.plan.problem, scene.plan.mask(), Rotation::Way::ahead);
    return {.results = std::move(wrong)};
}

/// Number of blocks that the rank attends to but of which this row sees no key.
int empty_blocks(const Scene& scene, int rank, std::int64_t row) {
    int empty = 0;
    for (int owner = 0; owner < scene.setup.ranks; ++owner)
        empty += scene.plan.forward->needs(rank, owner) &&
                 std::ranges::none_of(scene.plan.layout().positions(owner),
                                      [&](auto key) { return scene.plan.mask().visible(row, key); });
    return empty;
}

void fill_token(Tensor& tensor, std::int64_t token, double value) {
    const auto& shape = tensor.shape();
    for (std::size_t b = 0; b < shape[0]; ++b)
        std::fill_n(&tensor(b, static_cast<std::size_t>(token), 0, 0), shape[2] * shape[3], value);
}

/// 5. A block of which a row sees no key has lse = +inf, and so weight 1 in the merge. The row then has o = 0 and lse =
/// +inf, and p = 0 in the backward pass, as if its dO were 0. At a second such block lse - lse is NaN, and so is
/// everything that follows from it.
Consequence plus_infinity(const Scene& scene) {
    constexpr auto infinite = std::numeric_limits<double>::infinity();
    constexpr auto nothing = std::numeric_limits<double>::quiet_NaN();
    std::vector<std::pair<std::int64_t, double>> erased;  // rows, and the lse that they get
    for (int rank = 0; rank < scene.setup.ranks; ++rank)
        for (const auto row : scene.plan.layout().positions(rank))
            if (const int empty = empty_blocks(scene, rank, row); empty > 0)
                erased.emplace_back(row, empty == 1 ? infinite : nothing);
    auto inputs = scene.inputs;
    for (const auto& [row, lse] : erased) fill_token(inputs.dout, row, 0);
    auto wrong = scene.run(scene.plan_under(scene.plan.mask()), inputs);
    auto& out = wrong.outputs;
    for (const auto& [row, lse] : erased) {
        const double o = lse == infinite ? 0 : nothing;
        for (auto* tensor : {&out.o, &wrong.o_unrounded, &out.dq}) fill_token(*tensor, row, o);
        for (std::size_t b = 0; b < out.lse.shape(0); ++b)
            std::fill_n(&out.lse(b, static_cast<std::size_t>(row), 0), out.lse.shape(2), lse);
        if (lse == infinite) continue;
        for (std::int64_t key = 0; key < scene.plan.problem.tokens; ++key)
            if (scene.plan.mask().visible(row, key))
                for (auto* tensor : {&out.dk, &out.dv}) fill_token(*tensor, key, nothing);
    }
    return {.results = std::move(wrong)};
}

/// 6. The mask is asked with positions inside each block.
Consequence local_mask(const Scene& scene) {
    return {.results = scene.run(broken(scene, BrokenSchedule::Break::local_mask, {Pass::forward, Pass::backward}),
                                 scene.inputs)};
}

/// "causal+documents:A,B,C" where no end of a document is a multiple of the ranks; cut so that all are.
std::string documents(std::int64_t tokens, int ranks, bool cut) {
    const auto boundary = [&](std::int64_t sixtieths) {
        auto at = tokens * sixtieths / 60;
        while (ranks > 1 && at % ranks != ranks - 1) ++at;
        return cut ? at / ranks * ranks : at;
    };
    const auto first = boundary(13), second = boundary(35);
    return fmt::format("causal+documents:{},{},{}", first, second - first, tokens - second);
}

/// 7. cu_seqlens / P on every rank.
Consequence cut_documents(const Scene& scene) {
    const auto tokens = scene.plan.problem.tokens;
    const auto mask = layouts::make_mask(documents(tokens, scene.setup.ranks, true), tokens);
    return {.results = scene.run(scene.plan_under(mask), scene.inputs)};
}

/// 8. The contributions of a ring's ranks to dK and dV are averaged, as over replicas, and not summed.
Consequence averaged_gradients(const Scene& scene) {
    auto wrong = scene.right;
    scale_by(wrong.outputs.dk, 1.0 / scene.setup.ranks);
    scale_by(wrong.outputs.dv, 1.0 / scene.setup.ranks);
    return {.results = std::move(wrong)};
}

/// 9. The position of the newest token is its index in the shard of the last rank.
Consequence local_last_token(const Scene& scene) {
    auto problem = scene.plan.problem;
    const auto last = scene.plan.layout().shard_tokens(scene.setup.ranks - 1) - 1;
    problem.queries = {{last, last + 1}};
    return {.results = scene.run(scene.plan_of(problem, scene.plan.mask()), scene.inputs)};
}

/// The tensor with each kv head repeated for all query heads that read it.
Tensor expanded(const Tensor& tensor, const layouts::Problem& problem) {
    auto shape = tensor.shape();
    shape[2] = static_cast<std::size_t>(problem.query_heads);
    Tensor wide(shape);
    const auto group = static_cast<std::size_t>(problem.query_heads_per_kv_head());
    for (std::size_t b = 0; b < shape[0]; ++b)
        for (std::size_t t = 0; t < shape[1]; ++t)
            for (std::size_t h = 0; h < shape[2]; ++h)
                std::copy_n(&tensor(b, t, h / group, 0), shape[3], &wide(b, t, h, 0));
    return wide;
}

/// 10. kv heads are expanded before they travel. The results are right, so only the traffic shows the mistake.
Consequence expanded_heads(const Scene& scene) {
    auto problem = scene.plan.problem;
    problem.kv_heads = problem.query_heads;
    auto inputs = scene.inputs;
    inputs.k = expanded(inputs.k, scene.plan.problem);
    inputs.v = expanded(inputs.v, scene.plan.problem);
    const auto run = scene.run(scene.plan_of(problem, scene.plan.mask()), inputs);
    std::int64_t sent = 0;
    for (const auto* pass : {&run.forward, &run.backward})
        for (const auto& rank : layouts::totals(pass->timeline())) sent += rank.bytes_sent;
    const auto bound = bytes_between_ranks(*scene.plan.forward) + bytes_between_ranks(*scene.plan.backward);
    return {.gate = "traffic",
            .measured = static_cast<double>(sent),
            .bound = static_cast<double>(bound),
            .said = fmt::format("{} bytes between ranks, the schedule has {}", sent, bound)};
}

void copy_token(const Tensor& from, std::int64_t token, Tensor& to) {
    const auto at = static_cast<std::size_t>(token);
    for (std::size_t b = 0; b < from.shape(0); ++b)
        std::copy_n(&from(b, at, 0, 0), from.shape(2) * from.shape(3), &to(b, at, 0, 0));
}

/// 11. Each rank draws dropout with its own seed. The rows of a rank are taken from a run with that seed, in which the
/// dO of all other rows is 0.
Consequence dropout_by_rank(const Scene& scene) {
    auto wrong = scene.right;
    auto& out = wrong.outputs;
    for (auto* gradient : {&out.dk, &out.dv}) scale_by(*gradient, 0);
    for (int rank = 0; rank < scene.setup.ranks; ++rank) {
        auto problem = scene.plan.problem;
        problem.dropout.seed += static_cast<std::uint64_t>(rank);
        auto inputs = scene.inputs;
        for (int other = 0; other < scene.setup.ranks; ++other)
            if (other != rank)
                for (const auto row : scene.plan.layout().positions(other)) fill_token(inputs.dout, row, 0);
        const auto own = scene.run(scene.plan_of(problem, scene.plan.mask()), inputs);
        for (const auto row : scene.plan.layout().positions(rank)) {
            copy_token(own.outputs.o, row, out.o);
            copy_token(own.o_unrounded, row, wrong.o_unrounded);
            copy_token(own.outputs.dq, row, out.dq);
        }
        add_to(out.dk, own.outputs.dk);
        add_to(out.dv, own.outputs.dv);
    }
    return {.results = std::move(wrong)};
}

/// 11. The backward pass draws dropout anew, as one does that draws by the steps of a pass.
Consequence dropout_by_pass(const Scene& scene) {
    auto problem = scene.plan.problem;
    ++problem.dropout.seed;
    auto wrong = scene.right;
    auto anew = scene.run(scene.plan_of(problem, scene.plan.mask()), scene.inputs).outputs;
    for (const auto gradient : {&reference::Outputs::dq, &reference::Outputs::dk, &reference::Outputs::dv})
        wrong.outputs.*gradient = std::move(anew.*gradient);
    return {.results = std::move(wrong)};
}

/// 12. Every gradient is twice too large.
Consequence doubled_gradients(const Scene& scene) {
    auto wrong = scene.right;
    for (auto* gradient : {&wrong.outputs.dq, &wrong.outputs.dk, &wrong.outputs.dv}) scale_by(*gradient, 2);
    return {.results = std::move(wrong)};
}

/// 13. Under "window:...+sink:N" the window alone decides which blocks travel and are attended to, so the first keys
/// are missing.
Consequence dropped_first_keys(const Scene& scene) {
    const auto& mask = scene.plan.mask();
    auto segments = mask.segments();
    for (auto& segment : segments) segment.sink = 0;
    const layouts::Mask window(mask.name() + " without its sink", mask.tokens(), segments, mask.valid());
    return {.results = scene.run(scene.plan_under(window), scene.inputs)};
}

/// "causal+valid:0-N" with an eighth of the tokens and one more behind N.
std::string tail_padding(std::int64_t tokens) { return fmt::format("causal+valid:0-{}", tokens - tokens / 8 - 1); }

/// 14. The loss is the mean over all tokens, but should be the mean over those that are not padding.
Consequence averaged_padding(const Scene& scene) {
    std::int64_t there = 0;
    for (const auto& valid : scene.plan.mask().valid()) there += valid.size();
    const auto& problem = scene.plan.problem;
    auto inputs = scene.inputs;
    for (auto& x : inputs.dout) x *= static_cast<double>(there) / static_cast<double>(problem.tokens);
    inputs.dout = reference::rounded(inputs.dout, problem.dtype);
    return {.results = scene.run(scene.plan_under(scene.plan.mask()), inputs)};
}

/// 13. Sink logits are ignored, as by a kernel that does not know the argument: they are in no softmax, and their
/// gradient is 0.
Consequence dropped_sinks(const Scene& scene) {
    auto problem = scene.plan.problem;
    problem.sinks = {};
    auto results = scene.run(scene.plan_of(problem, scene.plan.mask()), scene.inputs);
    results.outputs.dsinks.assign(scene.plan.problem.sinks.size(), 0);
    return {.results = std::move(results)};
}

}  // namespace

RingRun Scene::run(const Plan& altered, const reference::Inputs& values) const {
    return std::move(
        backend.run(altered, {.ring = setup.ranks}, judged_options(execution, policy, std::span(&values, 1), 1))
            .front());
}

Plan Scene::plan_of(const layouts::Problem& problem, const layouts::Mask& mask) const {
    return {problem, layouts::make_schedule(problem, mask, plan.layout(), plan.forward->options()),
            layouts::make_schedule(problem, mask, plan.layout(), plan.backward->options())};
}

std::vector<Mistake> mistakes(std::int64_t tokens, int ranks) {
    constexpr double base = 10000;
    const auto window = fmt::format("window:{},0", std::max<std::int64_t>(1, tokens / ranks / 2));
    return {
        {1, "lse and o of each block backward", "causal", "zigzag", per_block_statistics},
        {2, "step 0's K, V backward", "causal", "zigzag", stale_block},
        {3, "peers numbered inside the ring", "causal", "zigzag", misnumbered_peers},
        {4, "rotary positions of the shard", "causal", "zigzag", rotary_by_place, base},
        {4, "rotary stride of the world", "causal", "striped", rotary_by_world, base},
        {4, "gradients left rotated", "causal", "zigzag", gradients_left_rotated, base},
        {5, "lse = +inf for empty rows", "causal", "striped", plus_infinity, 0, false, "partials"},
        {6, "window in each block's coordinates", window, "contiguous", local_mask},
        {7, "documents cut by rank count", documents(tokens, ranks, false), "contiguous", cut_documents},
        {8, "dK, dV averaged over the ring", "causal", "zigzag", averaged_gradients},
        {9, "last token by the shard's count", "causal", "contiguous", local_last_token, 0, true},
        {10, "kv heads expanded before the hop", "causal", "zigzag", expanded_heads},
        {11, "dropout drawn by each rank", "causal", "zigzag", dropout_by_rank, 0, false, "", 0.1},
        {11, "dropout drawn by each pass", "causal", "zigzag", dropout_by_pass, 0, false, "", 0.1},
        {12, "gradients twice too large", "causal", "zigzag", doubled_gradients},
        {13, "first keys dropped by a window's ring", window + "+sink:4", "contiguous", dropped_first_keys},
        {13, "sink logits dropped under a window", window, "contiguous", dropped_sinks, 0, false, "", 0, true},
        {14, "tail padding averaged into the loss", tail_padding(tokens), "zigzag", averaged_padding},
    };
}

}  // namespace ringlab::experiments
