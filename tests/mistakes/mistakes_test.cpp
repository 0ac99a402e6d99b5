// Mistakes that other systems shipped with, each made on purpose: a gate that passes the right run must see it, and the
// record of what each gate measured is what docs/explanation/mistakes.md tells.
#include "tests/mistakes/mistakes.hpp"
#include "experiments/record/record.hpp"
#include "experiments/study/describe.hpp"
#include "experiments/study/study.hpp"

#include <fmt/format.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstdlib>
#include <numeric>

namespace ringlab::experiments::tests {
namespace {

constexpr std::size_t judged_count = judged_tensors.size();
using ByTensor = std::array<double, judged_count>;

std::string from_environment(const char* name, const std::string& otherwise) {
    const char* given = std::getenv(name);
    return given ? given : otherwise;
}

Config config_of(const std::string& arithmetic) {
    Config config;
    config.sweep.inputs = {"real"};
    config.problem.arithmetic = arithmetic;
    config.execution.backend = from_environment("RINGLAB_MISTAKES_BACKEND", "cpu");
    for (const auto& [name, backend] : backends().entries()) config.execution.backends[name] = backend.factory();
    config.execution.timeout_seconds = 5;
    return config;
}

/// Error over tolerance, by norm or by the largest element.
ByTensor shares(const Verdict& verdict, const Tolerance& tolerance) {
    ByTensor all{};
    const auto over = [](double error, double bound) { return error == 0 ? 0 : error / bound; };
    for (std::size_t i = 0; i < judged_count; ++i)
        all[i] = worse(over(verdict[i].relative_rms, tolerance.relative_rms[i]),
                       over(verdict[i].max_to_largest, tolerance.max_relative[i]));
    return all;
}

template <class Values>
double cosine(const Values& a, const Values& b) {
    const auto dot = [](const auto& x, const auto& y) {
        return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
    };
    return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

/// By judged tensor; NaN for sinks.
std::vector<double> cosines(const RingRun& a, const RingRun& b) {
    return {cosine(a.outputs.o, b.outputs.o),
            cosine(a.o_unrounded, b.o_unrounded),
            cosine(a.outputs.lse, b.outputs.lse),
            cosine(a.outputs.dq, b.outputs.dq),
            cosine(a.outputs.dk, b.outputs.dk),
            cosine(a.outputs.dv, b.outputs.dv),
            std::nan("")};
}

/// What the gate of a mistake measures over what it lets pass, beside the same of the right run.
struct Seen {
    std::string gate, said;
    double right_factor = 0, factor = std::nan("");  // NaN: the mistake cannot be made on this backend
    ByTensor of_right{}, of_wrong{};
    std::vector<double> cosines = {};
};

/// Makes mistakes of one arithmetic, and keeps what came of them if RINGLAB_MISTAKES_RECORD names a folder.
class Maker {
public:
    static constexpr int ranks = 4;
    static constexpr std::int64_t tokens = 512;

    explicit Maker(const std::string& arithmetic) : config_(config_of(arithmetic)) {
        const auto folder = from_environment("RINGLAB_MISTAKES_RECORD", "");
        if (folder.empty()) return;
        const auto configuration =
            fmt::format("arithmetic = {}\nbackend = {}\n", arithmetic, config_.execution.backend);
        record_.emplace(
            std::filesystem::path(folder) / fmt::format("faults_{}_{}.h5", config_.execution.backend, arithmetic),
            RecordMode::overwrite,
            RecordHeader{"faults", "Mistakes made on purpose, and which gate sees them", configuration},
            collect_provenance(0, nullptr));
    }
    ~Maker() {
        if (record_) record_->finish();
    }

    Seen make(const Mistake& mistake) {
        auto asked = config_.problem;
        asked.rotary.base = mistake.rotary;
        asked.dropout = {mistake.dropout, config_.problem.seed};
        if (mistake.sinks) asked.sinks = {"normal"};
        Case setup{"real", mistake.mask, mistake.layout, "ring", mistake.policy, ranks, tokens};
        setup.queries = mistake.decodes ? 1 : 0;
        const auto plan = make_plan(setup, Source(asked, config_.sweep.inputs, 1).inspect("real").problem);
        const auto policy = policy_from(mistake.policy, plan.problem.dtype);
        const auto& inputs = source_.get(setup, plan.problem).front().inputs;
        const auto backend = make_backend(config_.execution, {{ranks}, config_.problem.arithmetic});
        const auto right = std::move(
            backend->run(plan, {.ring = ranks}, judged_options(config_.execution, policy, std::span(&inputs, 1), 1))
                .front());
        const auto name = fmt::format("{} {}", mistake.rotary, mistake.dropout);
        const auto judged = [&](const RingRun& one) {
            return judge_(plan.problem, plan.mask(), inputs, name, one.outputs, one.o_unrounded);
        };
        const auto right_verdict = judged(right);
        const auto tolerance = judge_.tolerance(*plan.forward, *plan.backward, inputs, name, false);
        const auto made = mistake.make({config_.execution, setup, plan, policy, inputs, *backend, right});

        Seen seen{made.gate, made.said};
        seen.of_right = shares(right_verdict, tolerance);
        seen.right_factor = *std::ranges::max_element(seen.of_right);
        if (made.results) {
            seen.of_wrong = shares(judged(*made.results), tolerance);
            const auto worst = std::ranges::max_element(seen.of_wrong);
            seen.factor = *worst;
            seen.gate =
                fmt::format("fp64, {}", judged_tensors[static_cast<std::size_t>(worst - seen.of_wrong.begin())]);
            seen.cosines = cosines(*made.results, right);
        } else if (made.bound > 0) {
            seen.factor = made.measured / made.bound;
        }
        if (record_) keep(mistake, setup, plan, seen);
        return seen;
    }

private:
    void keep(const Mistake& mistake, const Case& setup, const Plan& plan, const Seen& seen) {
        RunWriter run;
        describe_case(run, setup, plan);
        run.attribute("kind", "mistake", "1", "what was made on purpose");
        run.attribute("name", mistake.name, "1", "the mistake");
        run.attribute("mistake", mistake.number, "1", "number in the list of docs/explanation/mistakes.md");
        run.attribute("gate", seen.gate, "1", "the check that sees it");
        run.attribute("factor", seen.factor, "1",
                      "what the gate measures over what it lets pass; NaN: the mistake was not made");
        run.attribute("right_factor", seen.right_factor, "1", "of the right run against fp64");
        run.attribute("said", seen.said, "1", "what the gate said, where it speaks");
        if (!seen.cosines.empty()) {
            run.dimension("tensor", std::vector<std::string>(judged_tensors.begin(), judged_tensors.end()), "1",
                          "result that is judged against the fp64 reference");
            run.dataset("judged/cosine", seen.cosines, {"tensor"}, "1",
                        "cosine similarity of the wrong and the right result: what a gate of cosines would judge");
        }
        record_->commit(fmt::format("{} {}", mistake.number, mistake.name), run);
    }

    Config config_;
    Source source_{config_.problem, config_.sweep.inputs, 1};
    Judge judge_{judge_limits(config_)};
    std::optional<Record> record_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(mistakes_on_purpose)

BOOST_DATA_TEST_CASE(every_mistake_is_seen_by_a_gate_that_passes_the_right_run,
                     boost::unit_test::data::make({"fp64", "fp32", "bf16"}), arithmetic) {
    Maker maker(arithmetic);
    std::set<int> numbers;
    for (const auto& mistake : mistakes(Maker::tokens, Maker::ranks)) {
        const auto seen = maker.make(mistake);
        BOOST_TEST_MESSAGE(fmt::format("{} {}: {}, factor {:.2g} (right run {:.2g})", mistake.number, mistake.name,
                                       seen.gate, seen.factor, seen.right_factor));
        BOOST_TEST(seen.right_factor <= 1, mistake.name);
        if (!std::isnan(seen.factor)) BOOST_TEST(seen.factor > 1, mistake.name);
        numbers.insert(mistake.number);
    }
    BOOST_TEST(numbers.size() == 14u);
    BOOST_TEST(*numbers.rbegin() == 14);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::tests
