#include "experiments/planning/batch_advice.hpp"

#include "experiments/config/source.hpp"
#include "experiments/planning/advice_play.hpp"
#include "layouts/basics/require.hpp"
#include "sim/cost/plan_prices.hpp"
#include "sim/play/simulate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace ringlab::experiments {
namespace {

/// `tokens`, rounded up to a multiple of `ranks`.
std::int64_t padded_tokens(std::int64_t tokens, int ranks) { return (tokens + ranks - 1) / ranks * ranks; }

class BatchAdviser {
public:
    BatchAdviser(const BatchQuestion& question, const Batch& batch)
        : question_(question),
          mask_(question.config.sweep.masks.front()),
          problem_(problem_from(question.config.problem)),
          gradient_dtype_(policy_from("", problem_.dtype).gradient_dtype),
          batch_(batch),
          lengths_(batch.lengths()) {
        std::map<std::int64_t, double> known;  // seconds by length
        for (const auto length : lengths_) {
            const auto [at, is_new] = known.try_emplace(length, 0);
            if (is_new) at->second = seconds_of(1, {length});
            documents_.push_back({length, at->second});
        }
    }

    BatchAdvice run() {
        const auto packings = static_cast<int>(batch_.packings.size());
        const layouts::RingPrice price = [&](int ranks, std::span<const std::size_t> documents) {
            return price_of(ranks, documents);
        };
        const layouts::RingSet equal{std::vector<int>(batch_.packings.size(), question_.gpus / packings),
                                     question_.most_tokens_per_rank};
        auto as_given = layouts::priced(given_assignment(equal.ranks), price);
        auto exchanged = layouts::exchange_documents(documents_, equal, price);
        if (!exchanged || exchanged->slowest() > as_given.slowest()) exchanged = as_given;
        auto one = layouts::exchange_documents(documents_, {{question_.gpus}, question_.most_tokens_per_rank}, price);
        auto differ =
            layouts::choose_rings(documents_, {question_.gpus, question_.sizes, question_.most_tokens_per_rank}, price);
        BatchAdvice advice{lengths_, {}, 0};
        const auto add = [&](const char* name, std::optional<layouts::PricedAssignment> rings) {
            if (rings) advice.sharings.push_back(described(name, std::move(*rings)));
        };
        add("as given", std::move(as_given));
        add("exchanged", std::move(exchanged));
        add("one ring", std::move(one));
        add("sizes differ", std::move(differ));
        settle_best(advice);
        return advice;
    }

private:
    /// All sharings are compared by the same clock: by the simulator if it has played all of them.
    static void settle_best(BatchAdvice& advice) {
        auto& all = advice.sharings;
        if (std::ranges::any_of(all, [](const BatchSharing& one) { return one.simulated.empty(); }))
            for (auto& one : all) one.simulated.clear();
        for (std::size_t i = 0; i < all.size(); ++i)
            if (all[i].fits && (!all[advice.best].fits || all[i].seconds() < all[advice.best].seconds()))
                advice.best = i;
    }

    layouts::Assignment given_assignment(const std::vector<int>& rings) const {
        layouts::Assignment assignment{rings, {}};
        std::size_t next = 0;
        for (const auto& packing : batch_.packings) {
            auto& documents = assignment.documents.emplace_back(packing.size());
            std::iota(documents.begin(), documents.end(), next);
            next += packing.size();
        }
        return assignment;
    }

    std::vector<std::int64_t> lengths_of(std::span<const std::size_t> documents) const {
        std::vector<std::int64_t> lengths;
        for (const auto document : documents) lengths.push_back(lengths_[document]);
        return lengths;
    }

    /// Seconds of both passes on a ring with documents of these lengths, by the closed form.
    double seconds_of(int ranks, const std::vector<std::int64_t>& lengths) const {
        const auto tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        auto problem = problem_;
        problem.tokens = padded_tokens(tokens, ranks);
        const auto mask = layouts::pad(layouts::make_mask(packed_mask(mask_, lengths), tokens), problem.tokens);
        const auto prices = sim::plan_prices(question_.machine.machine, problem, ranks, gradient_dtype_);
        return layouts::plan_cost(layouts::planned_layout(mask, ranks, prices), mask, prices).total();
    }

    /// The same by numbers of documents. Rings are asked for again and again, so prices are kept.
    double price_of(int ranks, std::span<const std::size_t> documents) {
        if (documents.empty()) return 0;
        auto [at, is_new] = prices_.try_emplace({ranks, {documents.begin(), documents.end()}}, 0);
        if (is_new) at->second = seconds_of(ranks, lengths_of(documents));
        return at->second;
    }

    /// A sharing with its memory, simulated if the budget allows it.
    BatchSharing described(std::string name, layouts::PricedAssignment rings) const {
        BatchSharing sharing;
        sharing.name = std::move(name);
        sharing.rings = std::move(rings);
        const auto& [sizes, documents] = sharing.rings.assignment;
        const auto& machine = question_.machine;
        auto left = question_.config.advice.budget_seconds * operations_per_second;
        sim::SimOptions options;
        options.clock = question_.config.prediction.attend_clock();
        for (std::size_t ring = 0; ring < sizes.size(); ++ring) {
            if (documents[ring].empty()) {
                sharing.simulated.push_back(0);
                continue;
            }
            const auto plan = plan_of(sizes[ring], lengths_of(documents[ring]));
            sharing.most_tokens = std::max(sharing.most_tokens, plan.problem.tokens / sizes[ring]);
            const auto keep = keeping(question_.config.memory.keep.front(), plan.problem, question_.config.memory);
            const auto need = footprint(*plan.forward, plan.backward.get(), keep, question_.config.memory.model_layers,
                                        machine.capacity);
            sharing.memory = std::max(sharing.memory, need.total());
            left -= static_cast<double>(operations_of(plan));
            if (left < 0) continue;
            double seconds = 0;
            for (const auto pass : both_passes)
                seconds += layouts::to_seconds(sim::simulate(*plan.schedule(pass), machine.machine, options).makespan);
            sharing.simulated.push_back(seconds);
        }
        if (sharing.simulated.size() < sizes.size()) sharing.simulated.clear();
        sharing.fits = sharing.memory <= machine.capacity.device;
        return sharing;
    }

    /// A ring by itself, on the first GPUs of the machine.
    Plan plan_of(int ranks, const std::vector<std::int64_t>& lengths) const {
        const auto host = question_.machine.machine.gpus_per_host;
        Case which;
        which.mask = packed_mask(mask_, lengths);
        which.layout = "planned:" + question_.machine.file;
        which.schedule = ranks > host ? fmt::format("seen:64:{}", host) : "seen";
        which.ranks = ranks;
        which.tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        which.pad = true;
        return make_plan(which, problem_);
    }

    const BatchQuestion& question_;
    std::string mask_;
    layouts::Problem problem_;
    layouts::DType gradient_dtype_;
    const Batch& batch_;
    std::vector<std::int64_t> lengths_;
    std::vector<layouts::BatchDocument> documents_;
    std::map<std::pair<int, std::vector<std::size_t>>, double> prices_;
};

}  // namespace

double BatchSharing::seconds() const {
    return simulated.empty() ? rings.slowest() : *std::ranges::max_element(simulated);
}

double BatchSharing::balance() const { return rings.mean() > 0 ? rings.slowest() / rings.mean() : 1; }

BatchAdvice advise_batch(const BatchQuestion& question, const Batch& batch) {
    constexpr int most_gpus = 1024;
    const auto packings = static_cast<int>(batch.packings.size());
    require(question.gpus <= most_gpus, "--gpus {}: documents of a batch are shared among at most {} GPUs",
            question.gpus, most_gpus);
    require(question.gpus % packings == 0,
            "{} packings do not divide {} GPUs into rings of one size; give --gpus a multiple of {}", packings,
            question.gpus, packings);
    const auto ranks = question.gpus / packings;
    require(batch.tokens_per_packing() % ranks == 0,
            "a packing of {} tokens cannot be shared equally by the {} ranks of its ring", batch.tokens_per_packing(),
            ranks);
    const auto given = batch.tokens_per_packing() / ranks;
    require(question.most_tokens_per_rank >= given,
            "--most-tokens-per-rank {} is below the {} tokens per rank of the packings as given",
            question.most_tokens_per_rank, given);
    return BatchAdviser(question, batch).run();
}

}  // namespace ringlab::experiments
