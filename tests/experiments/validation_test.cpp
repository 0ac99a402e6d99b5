// The rings that `validate` measured, on two H200 and on two processors, predicted again by today's model from the
// machine files that were calibrated beside them: a model that became worse fails here.

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/inputs/source.hpp"
#include "experiments/record/hdf5.hpp"
#include "experiments/validation/score.hpp"
#include "sim/simulate.hpp"

#include <fmt/format.h>
#include <boost/test/unit_test.hpp>

#include <map>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

const std::string folder = RINGLAB_SOURCE_DIR "/experiments/";

/// The flat table of a record's runs.
class Runs {
public:
    explicit Runs(const std::string& file) : file_(hdf5::File::open(file)) {}

    std::size_t count() const { return file_.dataset("runs/name").texts().size(); }
    std::string text(const std::string& column, std::size_t run) const {
        return file_.dataset("runs/" + column).texts().at(run);
    }
    double number(const std::string& column, std::size_t run) const {
        return file_.dataset("runs/" + column).doubles().at(run);
    }
    bool has(const std::string& column) const { return file_.contains("runs/" + column); }

private:
    hdf5::File file_;
};

Plan plan_of(const Runs& runs, std::size_t run) {
    const Case which{"",
                     runs.text("mask", run),
                     runs.text("layout", run),
                     runs.text("algorithm", run),
                     "",
                     static_cast<int>(runs.number("ranks", run)),
                     static_cast<std::int64_t>(runs.number("tokens", run))};
    const auto config = with_shape(runs.text("shape", run), Config{});
    return make_plan(which, problem_from(config), config, {});
}

/// Predicted for ranks that repeat a pass as they did when it was measured.
sim::Prediction prediction_of(const Runs& runs, std::size_t run, Pass pass, const Plan& plan,
                              const sim::Machine& machine) {
    const auto seconds = [&](Pass which) { return runs.number(fmt::format("rate_{}_seconds", to_string(which)), run); };
    sim::SimOptions options;
    options.clock = sim::Clock::sustained;
    const auto period = fmt::format("period_{}", to_string(pass));
    if (runs.has(period)) options.pause_seconds = std::max(0.0, runs.number(period, run) - seconds(pass));
    if (pass == Pass::backward && options.pause_seconds > seconds(Pass::forward))
        options.pause_busy_seconds = seconds(Pass::forward);
    return sim::simulate(*plan.schedule(pass), machine, options);
}

/// The error of the predicted time of a pass.
double error_of(const sim::Prediction& predicted, const Runs& runs, std::size_t run, Pass pass) {
    return layouts::to_seconds(predicted.makespan) / runs.number(fmt::format("rate_{}_seconds", to_string(pass)), run) -
           1;
}

/// Predicted less measured, where the record says by how much the prediction of its day was off.
double balance_error_of(const sim::Prediction& predicted, const Runs& runs, std::size_t run, Pass pass,
                        const std::string& machine) {
    std::vector<double> compute;
    for (const auto& rank : predicted.ranks) compute.push_back(layouts::to_seconds(rank.compute));
    const auto number = [&](const char* column) {
        return runs.number(fmt::format("{}_{}_{}", column, to_string(pass), machine), run);
    };
    return layouts::imbalance(compute) - (number("balance_predicted") - number("error_balance"));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(validation)

// Not derived: each bound stands a fifth above what the model of today reaches on this record (3.6, 9.5 and 15.8 %),
// and is to go down with it.
BOOST_AUTO_TEST_CASE(measured_rings_of_two_gpus_are_predicted_as_well_as_ever) {
    const auto machine = sim::load_machine(folder + "machines/2xh200_calibrated.toml");
    const Runs runs(folder + "results/validate_2xh200.h5");
    std::map<bool, std::vector<double>> errors;  // by whether a rank has 2048 tokens or more
    for (std::size_t run = 0; run < runs.count(); ++run) {
        const auto plan = plan_of(runs, run);
        for (const auto pass : {Pass::forward, Pass::backward}) {
            const auto error = error_of(prediction_of(runs, run, pass, plan, machine), runs, run, pass);
            errors[plan.layout().shard_tokens(0) >= 2048].push_back(error);
            BOOST_TEST_MESSAGE(fmt::format("{} {}: {:+.1f} %", runs.text("name", run), to_string(pass), 100 * error));
        }
    }
    const auto large = score(errors[true]), small = score(errors[false]);
    BOOST_TEST_MESSAGE(
        fmt::format("2048 tokens and more: mean {:.2f} %, 95th {:.2f} %, largest {:.2f} %; fewer: {:.2f} %",
                    100 * large.mean, 100 * large.p95, 100 * large.most, 100 * small.mean));
    BOOST_TEST(large.mean < 0.044);
    BOOST_TEST(large.most < 0.114);
    BOOST_TEST(small.mean < 0.19);
}

/// Errors of schedules of which the calibration knows nothing (pull, bidirectional, seen, ulysses, pass-q, all-gather)
/// and of the ring, with `least` tokens a rank or more.
std::vector<double> errors_of_schedules(const std::string& transport, const std::string& machine_name,
                                        std::int64_t least) {
    const auto machine = sim::load_machine(folder + "machines/" + machine_name + ".toml");
    const Runs runs(folder + "results/throughput_2xh200_schedules.h5");
    std::vector<double> errors;
    for (std::size_t run = 0; run < runs.count(); ++run) {
        if (runs.text("kind", run) != "ring" || runs.text("transport", run) != transport) continue;
        const auto plan = plan_of(runs, run);
        if (plan.layout().shard_tokens(0) < least) continue;
        for (const auto pass : {Pass::forward, Pass::backward})
            errors.push_back(error_of(prediction_of(runs, run, pass, plan, machine), runs, run, pass));
    }
    const auto all = score(errors);
    BOOST_TEST_MESSAGE(fmt::format("{}: {} passes, mean {:.2f} %, 95th {:.2f} %, largest {:.2f} %", transport,
                                   errors.size(), 100 * all.mean, 100 * all.p95, 100 * all.most));
    return errors;
}

// Bounds as above: 4.6 and 28 %.
BOOST_AUTO_TEST_CASE(measured_schedules_over_copy_engines_are_predicted_as_well_as_ever) {
    const auto errors = errors_of_schedules("copy", "2xh200_calibrated", 0);
    BOOST_TEST(errors.size() == 42u);
    BOOST_TEST(score(errors).mean < 0.055);
    BOOST_TEST(score(errors).most < 0.336);
}

// Likewise: 3.6 and 15.3 %. Of fewer tokens it is what NCCL's host does that counts, which is not calibrated.
BOOST_AUTO_TEST_CASE(measured_schedules_over_nccl_are_predicted_as_well_as_ever) {
    const auto errors = errors_of_schedules("nccl", "2xh200_calibrated_nccl", 8192);
    BOOST_TEST(errors.size() == 28u);
    BOOST_TEST(score(errors).mean < 0.043);
    BOOST_TEST(score(errors).most < 0.184);
}

// The targets, 10 % of the time and 0.03 of the balance, hold for 95 of 100.
BOOST_AUTO_TEST_CASE(measured_rings_of_two_processors_are_predicted_as_well_as_ever) {
    const std::string name = "2cpus_calibrated";
    const auto machine = sim::load_machine(folder + "machines/" + name + ".toml");
    const Runs runs(folder + "results/validate_2cpus.h5");
    std::vector<double> errors, balances;
    for (std::size_t run = 0; run < runs.count(); ++run) {
        const auto plan = plan_of(runs, run);
        for (const auto pass : {Pass::forward, Pass::backward}) {
            const auto predicted = prediction_of(runs, run, pass, plan, machine);
            errors.push_back(error_of(predicted, runs, run, pass));
            balances.push_back(balance_error_of(predicted, runs, run, pass, name));
        }
    }
    const auto time = score(errors), balance = score(balances);
    BOOST_TEST_MESSAGE(
        fmt::format("time: mean {:.2f} %, 95th {:.2f} %, largest {:.2f} %; balance: {:.4f}, {:.4f}, {:.4f}",
                    100 * time.mean, 100 * time.p95, 100 * time.most, balance.mean, balance.p95, balance.most));
    BOOST_TEST(time.p95 < 0.10);
    BOOST_TEST(balance.p95 < 0.03);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments
