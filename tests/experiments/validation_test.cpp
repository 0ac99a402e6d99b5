// The rings that `validate` measured, on two H200 and on two processors, predicted again by today's model from the
// machine files that were calibrated beside them: a model that became worse fails here.

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/inputs/source.hpp"
#include "experiments/record/hdf5.hpp"
#include "experiments/study/predictor.hpp"
#include "experiments/validation/published.hpp"
#include "experiments/validation/score.hpp"
#include "sim/cost.hpp"
#include "sim/simulate.hpp"

#include <fmt/format.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <unistd.h>

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
    const auto period = fmt::format("period_{}", to_string(pass));
    repeat(options, {runs.has(period) ? runs.number(period, run) : 0, seconds(pass),
                     pass == Pass::backward ? seconds(Pass::forward) : 0});
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

constexpr std::int64_t any_size = std::int64_t{1} << 40;

/// Errors of passes of the rings of a record over one transport, with `least` tokens a rank or more and fewer than
/// `most`.
std::vector<double> errors_of(const std::string& record, const std::string& transport, const std::string& machine_name,
                              std::int64_t least, std::int64_t most) {
    const auto machine = sim::load_machine(folder + "machines/" + machine_name + ".toml");
    const Runs runs(folder + "results/" + record);
    std::vector<double> errors;
    for (std::size_t run = 0; run < runs.count(); ++run) {
        if (runs.text("kind", run) != "ring" || runs.text("transport", run) != transport) continue;
        const auto plan = plan_of(runs, run);
        const auto tokens = plan.layout().shard_tokens(0);
        if (tokens < least || tokens >= most) continue;
        for (const auto pass : {Pass::forward, Pass::backward})
            errors.push_back(error_of(prediction_of(runs, run, pass, plan, machine), runs, run, pass));
    }
    const auto all = score(errors);
    BOOST_TEST_MESSAGE(
        fmt::format("{}, {}, {} tokens and more: {} passes, mean {:.2f} %, 95th {:.2f} %, largest {:.2f} %", record,
                    transport, least, errors.size(), 100 * all.mean, 100 * all.p95, 100 * all.most));
    return errors;
}

// Not derived: each bound stands a fifth above what the model of today reaches on its record, and is to go down with
// it.
struct ScoreBound {
    const char *record, *transport, *machine;
    std::int64_t least, most;
    std::size_t passes;
    double mean, largest;
};
std::ostream& operator<<(std::ostream& out, const ScoreBound& bound) {
    return out << bound.record << " " << bound.transport << " " << bound.least;
}
const ScoreBound score_bounds[] = {
    {"validate_4xh200.h5", "copy", "4xh200_calibrated", 2048, any_size, 24, 0.0172, 0.055},
    {"validate_4xh200.h5", "copy", "4xh200_calibrated", 0, 2048, 8, 0.2840, 0.543},
    {"validate_4xh200_more.h5", "copy", "4xh200_calibrated", 0, any_size, 24, 0.0716, 0.296},
    {"throughput_4xh200_layouts.h5", "copy", "4xh200_calibrated", 0, any_size, 18, 0.0217, 0.040},
    {"throughput_4xh200_schedules.h5", "copy", "4xh200_calibrated", 0, any_size, 42, 0.0329, 0.189},
    {"throughput_4xh200_schedules.h5", "copy", "4xh200_calibrated", 8192, any_size, 28, 0.0224, 0.059},
    {"throughput_2xh200_schedules.h5", "copy", "2xh200_calibrated", 0, any_size, 48, 0.0410, 0.179},
    {"throughput_2xh200_schedules.h5", "copy", "2xh200_calibrated", 8192, any_size, 32, 0.0273, 0.097},
    {"throughput_2xh200_schedules.h5", "nccl", "2xh200_calibrated_nccl", 8192, any_size, 32, 0.0337, 0.126},
    {"throughput_2xh200_schedules.h5", "nccl", "2xh200_calibrated_nccl", 0, 8192, 16, 0.0826, 0.259},
    {"throughput_2xh200_layouts.h5", "copy", "2xh200_calibrated", 0, any_size, 36, 0.0260, 0.086},
    {"throughput_2xh200_masks.h5", "copy", "2xh200_calibrated", 0, any_size, 48, 0.0465, 0.123},
    {"throughput_2xh200_long_documents.h5", "copy", "2xh200_calibrated", 0, any_size, 8, 0.0153, 0.031},
    {"validate_2xh200.h5", "copy", "2xh200_calibrated", 2048, any_size, 144, 0.0297, 0.173},
    {"validate_2xh200.h5", "copy", "2xh200_calibrated", 0, 2048, 72, 0.0531, 0.188},
    {"validate_2xh200_nccl.h5", "nccl", "2xh200_calibrated_nccl", 8192, any_size, 24, 0.0237, 0.109},
    {"validate_2xh200_nccl.h5", "nccl", "2xh200_calibrated_nccl", 0, 8192, 24, 0.0710, 0.216},
    {"validate_4xh200_nccl.h5", "nccl", "4xh200_calibrated_nccl", 8192, any_size, 8, 0.0146, 0.058},
    {"validate_4xh200_nccl.h5", "nccl", "4xh200_calibrated_nccl", 0, 8192, 8, 0.1346, 0.321},
    {"throughput_4xh200_schedules.h5", "nccl", "4xh200_calibrated_nccl", 8192, any_size, 28, 0.0429, 0.158},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(validation)

BOOST_DATA_TEST_CASE(measured_rings_are_predicted_as_well_as_ever, boost::unit_test::data::make(score_bounds), bound) {
    const auto errors = errors_of(bound.record, bound.transport, bound.machine, bound.least, bound.most);
    BOOST_TEST(errors.size() == bound.passes);
    BOOST_TEST(score(errors).mean < bound.mean);
    BOOST_TEST(score(errors).most < bound.largest);
}

// What `advise` says of its uncertainty, to the last of the digits written there.
BOOST_DATA_TEST_CASE(machine_files_say_their_score, boost::unit_test::data::make({"2xh200", "4xh200"}), gpus) {
    const auto name = std::string(gpus);
    for (const bool over_nccl : {false, true}) {
        std::vector<std::string> records{"validate_" + name + (over_nccl ? "_nccl" : ""),
                                         "throughput_" + name + "_schedules"};
        if (!over_nccl) records.push_back("throughput_" + name + "_layouts");
        const auto machine_name = name + "_calibrated" + (over_nccl ? "_nccl" : "");
        std::vector<double> errors;
        for (const auto& record : records) {
            const auto more =
                errors_of(record + ".h5", over_nccl ? "nccl" : "copy", machine_name, over_nccl ? 8192 : 2048, any_size);
            errors.insert(errors.end(), more.begin(), more.end());
        }
        const auto machine = sim::load_machine(folder + "machines/" + machine_name + ".toml");
        BOOST_TEST(std::abs(score(errors).mean - machine.mean_error) < 0.0005 + 1e-6,
                   machine_name << score(errors).mean);
        BOOST_TEST(std::abs(score(errors).most - machine.largest_error) < 0.0005 + 1e-6,
                   machine_name << score(errors).most);
    }
}

// What the README says of causal passes from 8Ki tokens per GPU on: the model, and compute + transfer from its
// durations.
BOOST_AUTO_TEST_CASE(the_readme_says_the_errors_of_today_beside_those_of_naive_guesses) {
    std::ifstream file(RINGLAB_SOURCE_DIR "/README.md");
    std::string readme;
    for (std::string word; file >> word;) readme += word + " ";
    for (const std::string gpus : {"2xh200", "4xh200"}) {
        std::string claim = gpus == "2xh200" ? "two H200" : "four H200";
        for (const std::string transport : {"copy", "nccl"}) {
            const Runs runs(folder + "results/throughput_" + gpus + "_schedules.h5");
            const auto machine = sim::load_machine(folder + "machines/" + gpus + "_calibrated" +
                                                   (transport == "nccl" ? "_nccl" : "") + ".toml");
            std::vector<double> errors, naive;
            for (std::size_t run = 0; run < runs.count(); ++run) {
                if (runs.text("kind", run) != "ring" || runs.text("transport", run) != transport) continue;
                const auto plan = plan_of(runs, run);
                if (plan.layout().shard_tokens(0) < 8192) continue;
                for (const auto pass : {Pass::forward, Pass::backward}) {
                    auto predicted = prediction_of(runs, run, pass, plan, machine);
                    errors.push_back(error_of(predicted, runs, run, pass));
                    predicted.makespan = predicted.naive_serial;
                    naive.push_back(error_of(predicted, runs, run, pass));
                }
            }
            BOOST_TEST(score(errors).mean < score(naive).mean);
            claim += fmt::format(" {} {:.1f} % ({}{:.1f} %){}", transport == "copy" ? "over copy engines" : "over NCCL",
                                 100 * score(errors).mean, claim == "two H200" ? "naive guess " : "",
                                 100 * score(naive).mean, transport == "copy" ? "," : "");
        }
        BOOST_TEST((readme.find(claim) != std::string::npos), "README.md lacks: " << claim);
    }
}

BOOST_AUTO_TEST_CASE(measured_rotations_are_what_machine_files_say) {
    const Runs runs(folder + "results/compare_layouts_2xh200_rotary.h5");
    for (const auto* name : {"4xh200_calibrated"}) {  // which is made of them
        const auto machine = sim::load_machine(folder + "machines/" + name + ".toml");
        Config config;
        config.heads = "32:8";
        config.head_dim = 128;
        config.arithmetic = "bf16";
        config.rotary.base = 500000;
        const auto plan = make_plan({"", "causal", "zigzag", "ring", "", 2, 16384}, problem_from(config), config, {});
        for (const auto pass : {Pass::forward, Pass::backward}) {
            const auto predicted = sim::rotation_seconds(*plan.schedule(pass), machine, 8192);
            // Three layouts rotate as much; the first one measured took 12 to 15 % longer than both others.
            std::vector<double> measured;
            for (std::size_t run = 0; run < runs.count(); ++run)
                measured.push_back(runs.number(fmt::format("rotation_measured_{}", to_string(pass)), run));
            BOOST_REQUIRE(measured.size() == 3u);
            std::ranges::sort(measured);
            BOOST_TEST(std::abs(predicted / measured[1] - 1) < 0.05, name << " " << to_string(pass));
        }
    }
}

// Likewise. Those of 2k tokens a GPU are hosts' times of programs in Python, of different days.
struct PublishedBound {
    const char* table;
    std::size_t figures;
    double mean, largest;
    friend std::ostream& operator<<(std::ostream& stream, const PublishedBound& bound) { return stream << bound.table; }
};
const PublishedBound published_bounds[] = {
    {"ring_flash_attention_8xh800", 6, 0.069, 0.114},
    {"peers_4xh200", 20, 0.035, 0.093},
    {"peers_8xh200", 24, 0.033, 0.120},
};

BOOST_DATA_TEST_CASE(published_rings_are_predicted_as_well_as_ever, boost::unit_test::data::make(published_bounds),
                     bound) {
    std::vector<double> errors;
    for (const auto& figure : predict_published(load_published(bound.table)))
        if (!figure.fitted && figure.tokens_per_rank >= 8192)
            errors.insert(errors.end(), {figure.forward.error(), figure.both.error()});
    BOOST_TEST(errors.size() == bound.figures);
    BOOST_TEST(score(errors).mean < bound.mean);
    BOOST_TEST(score(errors).most < bound.largest);
}

BOOST_AUTO_TEST_CASE(a_published_table_that_says_too_little_is_refused_by_its_line_or_key) {
    std::ifstream whole(folder + "published/ring_flash_attention_8xh800.toml");
    const std::string good{std::istreambuf_iterator<char>(whole), {}};
    const auto file = std::filesystem::temp_directory_path() / fmt::format("published_{}.toml", ::getpid());
    const auto error_of = [&](const std::string& what, const std::string& with) -> std::string {
        auto text = good;
        BOOST_REQUIRE(text.find(what) != std::string::npos);
        std::ofstream(file) << text.replace(text.find(what), what.size(), with);
        try {
            load_published(file.string());
        } catch (const Error& error) {
            return std::string(error.what()).substr(file.string().size());
        }
        return "";
    };
    BOOST_TEST(error_of("share", "share") == "");
    BOOST_TEST(error_of("share of one GPU", "percent") ==
               ": unit is 'percent'; it must be 'TFLOP/s per GPU' or 'share of one GPU'");
    BOOST_TEST(
        error_of("[0.521]", "[]").ends_with("has 0 figures forward and 1 of both passes; tokens_per_rank has 1"));
    BOOST_TEST(error_of("[0.521]", "[-1]").find(": forward must have numbers from") != std::string::npos);
    BOOST_TEST(error_of("ranks = 8", "ranks = 1") == ": ranks must be from 2 to 16384");
    BOOST_TEST(error_of("[8192]", "[[").find("not valid TOML") != std::string::npos);
    std::filesystem::remove(file);
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
