// Rings that were measured on H100, H200 and two processors, and what today's model predicts for them from machine files
// that were calibrated on none of them: results/scores.h5 is of today, has every record, and is better than a guess.

#include "experiments/benchmark/throughput_case.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/options/source.hpp"
#include "experiments/prediction/uncertainty.hpp"
#include "experiments/record/hdf5.hpp"
#include "experiments/validation/scores.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/simulate.hpp"
#include "tests/thinning.hpp"

#include <fmt/format.h>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <unistd.h>

namespace ringlab::experiments {
namespace {

using layouts::Pass;

const std::string folder = RINGLAB_SOURCE_DIR "/experiments/";

/// The committed ones.
const Scores& scores() {
    static const auto found = load_scores(folder + "results/scores.h5");
    return found;
}

/// A Markdown file with every line break and run of blanks as one blank.
std::string prose_of(const std::string& path) {
    std::ifstream file(RINGLAB_SOURCE_DIR "/" + path);
    std::string text;
    for (std::string word; file >> word;) text += word + " ";
    return text;
}

void check_says(const std::string& path, const std::string& sentence) {
    BOOST_TEST((prose_of(path).find(sentence) != std::string::npos), path << " lacks: " << sentence);
}

const std::string results = "experiments/results/README.md";

/// Passes that are judged together: of a record or of all, on one machine file, of one length.
struct PassErrors {
    std::vector<double> model, overlapped, serial;  ///< relative errors without sign, of the model and of naive guesses

    void add(const ScoredPass& pass) {
        model.push_back(std::abs(pass.error()));
        overlapped.push_back(std::abs(pass.overlapped));
        serial.push_back(std::abs(pass.serial));
    }
    /// That of the two guesses that is nearer on average.
    const std::vector<double>& naive() const {
        return score(overlapped).mean < score(serial).mean ? overlapped : serial;
    }
};

/// By what `group` says of a ring.
template <class Group>
std::map<std::string, PassErrors> errors_by(Group group) {
    std::map<std::string, PassErrors> all;
    for (const auto& ring : scores().rings)
        if (const auto name = group(ring); !name.empty())
            for (const auto& pass : ring.passes) all[name].add(pass);
    return all;
}

/// Mean of the differences a - b, and its standard error.
struct PairedMean {
    double mean = 0, standard_error = 0;
};
PairedMean paired_mean(const std::vector<double>& a, const std::vector<double>& b) {
    const auto n = static_cast<double>(a.size());
    double sum = 0, squares = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        sum += a[i] - b[i];
        squares += (a[i] - b[i]) * (a[i] - b[i]);
    }
    return {sum / n, std::sqrt(std::max(0.0, squares - sum * sum / n) / (n - 1) / n)};
}

/// Not explained so far: passes of 8Ki and 16Ki over NCCL on four H100 take longer than predicted, and the naive guess,
/// which is too long on others, happens to be nearer. On four H200 the calibration timed the first GPU alone, and the
/// others draw more power for the same work: passes take longer than predicted.
const std::set<std::string> known_worse{"validate_4xh100_nccl on 4xh100_calibrated_nccl, from 8Ki tokens per rank",
                                        "throughput_4xh200_layouts on 4xh200_calibrated, from 8Ki tokens per rank"};

/// The target of a pass's time: what a layout must win by, to be worth a change.
constexpr double target_error = 0.10;

ScoredRing ring_of(double deviation, std::int64_t tokens_per_rank, double density) {
    ScoredRing ring;
    ring.record = "a", ring.machine = "some";
    ring.tokens_per_rank = tokens_per_rank, ring.density = density;
    ring.passes[0].measured = 1 + deviation, ring.passes[0].predicted = 1;
    return ring;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(validation)

// A model that is further off than a guess from the same durations is worth nothing. That is asked of each record,
// machine file and length by itself, and by more than chance: of few passes the mean difference has a standard error.
BOOST_AUTO_TEST_CASE(no_kind_of_ring_is_predicted_worse_than_by_a_naive_guess) {
    const auto groups = errors_by([](const ScoredRing& ring) {
        return fmt::format("{} on {}, {} tokens per rank", ring.record, ring.machine,
                           length_bin(ring.tokens_per_rank).name);
    });
    for (const auto& [name, errors] : groups) {
        BOOST_TEST_REQUIRE(errors.model.size() > 1u, name);
        const auto worse = paired_mean(errors.model, errors.naive());
        BOOST_TEST((worse.mean <= worse.standard_error) == !known_worse.contains(name),
                   name << ": " << score(errors.model).mean << " for " << score(errors.naive()).mean);
    }
    BOOST_TEST(groups.size() > 20u);
}

// Below 2Ki tokens a pass is as short as the times of its launches, which differ between days by more than any target.
BOOST_AUTO_TEST_CASE(no_pass_from_2Ki_tokens_on_is_off_by_more_than_the_worst_naive_guess_or_the_target) {
    const auto groups = errors_by([](const ScoredRing& ring) {
        if (ring.tokens_per_rank < 2048) return std::string();
        return fmt::format("{} on {}, {} tokens per rank", ring.record, ring.machine,
                           length_bin(ring.tokens_per_rank).name);
    });
    for (const auto& [name, errors] : groups)
        if (!known_worse.contains(name))
            BOOST_TEST(score(errors.model).most <= std::max(target_error, score(errors.naive()).most), name);
    BOOST_TEST(groups.size() > 20u);
}

bool has_packings(const ScoredRing& ring) { return ring.record.starts_with("planned_"); }

// Where compute decides, which is where README.md says how far off predictions are. It says so of packings of real
// lengths on their own.
BOOST_AUTO_TEST_CASE(nine_of_ten_passes_from_8Ki_tokens_on_keep_to_the_target_on_each_machine_file) {
    const auto groups = errors_by([](const ScoredRing& ring) {
        return ring.tokens_per_rank < 8192 || has_packings(ring) ? std::string() : ring.machine;
    });
    for (const auto& [name, errors] : groups) {
        const auto within = std::ranges::count_if(errors.model, [](double error) { return error <= target_error; });
        BOOST_TEST(10 * within >= 9 * std::ssize(errors.model),
                   name << ": " << within << " of " << errors.model.size());
    }
    BOOST_TEST(groups.size() == 8u);
}

// Three of five was chosen after two records of two H100 were scored: four of six keep to it there.
BOOST_AUTO_TEST_CASE(three_of_five_passes_over_packings_of_real_lengths_keep_to_the_target) {
    const auto groups =
        errors_by([](const ScoredRing& ring) { return has_packings(ring) ? ring.record : std::string(); });
    for (const auto& [name, errors] : groups) {
        const auto within = std::ranges::count_if(errors.model, [](double error) { return error <= target_error; });
        BOOST_TEST(5 * within >= 3 * std::ssize(errors.model), name << ": " << within << " of " << errors.model.size());
    }
    BOOST_TEST(groups.size() == 2u);
}

BOOST_AUTO_TEST_CASE(every_record_of_rings_is_scored_or_listed_with_a_reason) {
    std::set<std::string> scored, records;
    for (const auto& ring : scores().rings) scored.insert(ring.record);
    for (const auto& record : scored_records())
        if (record.why_not.empty() == scored.contains(record.name)) records.insert(record.name);
    std::size_t looked_at = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder + "results")) {
        if (entry.path().extension() != ".h5") continue;
        const auto file = hdf5::File::open(entry.path());
        // Without transports are rings that were called from Python, beside other systems.
        if (!file.contains("runs/kind") || !file.contains("runs/transport")) continue;
        if (std::ranges::count(file.dataset("runs/kind").texts(), "ring") == 0) continue;
        ++looked_at;
        BOOST_TEST(records.contains(entry.path().stem().string()),
                   entry.path() << ": run `validate --measured all`, or list it in not_scored.toml with the reason");
    }
    BOOST_TEST(looked_at == records.size());
}

BOOST_AUTO_TEST_CASE(rings_of_gpus_that_were_too_warm_are_those_that_the_results_name) {
    const std::map<std::string, std::size_t> named{
        {"throughput_2xh100_schedules", 16}, {"throughput_4xh100_schedules", 14}, {"validate_4xh100", 4}};
    std::map<std::string, std::size_t> hot, warm;
    for (const auto& record : scored_records())
        if (record.hot_rings > 0) hot[record.name] = record.hot_rings;
    for (const auto& ring : scores().warm) ++warm[ring.record];  // they are predicted nevertheless
    BOOST_TEST((hot == named));
    BOOST_TEST((warm == named));
}

// All rings anew, under the sanitizers those of one record in five. Whoever changes the model or a machine file commits
// the new scores: `validate --measured all`.
BOOST_AUTO_TEST_CASE(committed_scores_are_of_todays_model_and_machine_files) {
    const auto file = std::filesystem::temp_directory_path() / fmt::format("scores_{}.h5", ::getpid());
    Provenance provenance;
    for (const auto& [name, digest] : scores().machine_digests)
        provenance.set_file("machine_" + name, folder + "machines/" + name + ".toml");
    std::set<std::string> scored_anew;
    {
        Record record(file, RecordMode::overwrite, {"validate", "scores", ""}, provenance);
        auto records = scored_records();
        std::erase_if(records,
                      [](const auto& one) { return !one.why_not.empty() || !ringlab::tests::runs_in_this_build(5); });
        for (const auto& one : records) scored_anew.insert(one.name);
        score_all(record, records);
    }
    const auto today = load_scores(file);
    std::filesystem::remove(file);
    for (const auto& [name, digest] : scores().machine_digests)
        if (ringlab::tests::runs_all_cases() || today.machine_digests.contains(name))
            BOOST_TEST(today.machine_digests.at(name) == digest, name << ".toml has changed since results/scores.h5");
    const auto with_warm = [&](const Scores& of) {
        auto all = of.rings;
        all.insert(all.end(), of.warm.begin(), of.warm.end());
        std::erase_if(all, [&](const ScoredRing& ring) { return !scored_anew.contains(ring.record); });
        return all;
    };
    const auto all_today = with_warm(today), all_committed = with_warm(scores());
    BOOST_REQUIRE(all_today.size() == all_committed.size());
    if (ringlab::tests::runs_all_cases()) BOOST_REQUIRE(today.rings.size() == scores().rings.size());
    for (std::size_t i = 0; i < all_today.size(); ++i) {
        const auto &now = all_today[i], &committed = all_committed[i];
        BOOST_REQUIRE(now.run == committed.run);
        BOOST_TEST(now.density == committed.density, now.run);
        for (std::size_t pass = 0; pass < now.passes.size(); ++pass) {
            // Another compiler may round otherwise, which times in picoseconds hardly show.
            BOOST_TEST(std::abs(now.passes[pass].predicted / committed.passes[pass].predicted - 1) < 1e-6, now.run);
            BOOST_TEST(now.passes[pass].measured == committed.passes[pass].measured, now.run);
        }
    }
}

BOOST_AUTO_TEST_CASE(a_margin_is_a_quantile_of_the_bin_or_of_the_next_wider_set_with_enough_rings) {
    std::vector<ScoredRing> rings;
    for (int i = 1; i <= 19; ++i) rings.push_back(ring_of(0.01 * i, 8192, 1));
    const auto of = [&](std::int64_t tokens, double density) { return margin(rings, tokens, density).value_or(-1); };
    constexpr double rounding = 1e-12;
    BOOST_TEST(std::abs(of(32768, 0.5) - 0.18) < rounding);  // ceil(0.9 * 20) = 18th of 19
    BOOST_TEST(std::abs(of(8191, 1) - 0.18) < rounding);     // none there: those of all lengths
    BOOST_TEST(of(8192, 0.49) == -1);                        // of sparse masks nothing is known
    rings.push_back(ring_of(0.5, 2048, 0.49));
    BOOST_TEST(std::abs(of(2048, 0.1) - 0.5) < rounding);   // the worst of one is beyond the 19th of 20
    BOOST_TEST(std::abs(of(8192, 0.1) - 0.19) < rounding);  // ceil(0.9 * 21) = 19th of all 20
    BOOST_TEST(std::abs(of(8192, 1) - 0.18) < rounding);
    rings.resize(9);
    BOOST_TEST(std::abs(of(8192, 1) - 0.09) < rounding);
    rings.resize(8);
    BOOST_TEST(of(8192, 1) == -1);  // of eight nobody can tell what nine of ten do
}

// What `advise` says behind +-, of rings that it has seen and of records that it has not.
BOOST_AUTO_TEST_CASE(nine_of_ten_measured_rings_lie_within_their_margins) {
    const auto seen = coverage(scores().rings, false), held_out = coverage(scores().rings, true);
    BOOST_TEST_MESSAGE(
        fmt::format("within: {} of {}, held out {} of {}", seen.within, seen.all, held_out.within, held_out.all));
    BOOST_TEST(seen.all == scores().rings.size());
    BOOST_TEST(10 * seen.within >= 9 * seen.all);
    // Machine files with a single record have no others to take a margin from.
    BOOST_TEST(2 * held_out.all >= scores().rings.size());
    BOOST_TEST(10 * held_out.within >= 9 * held_out.all);
}

BOOST_AUTO_TEST_CASE(the_page_of_scores_has_those_of_today) {
    std::istringstream printed(scores_text(scores(), scored_records()));
    std::string text;
    for (std::string word; printed >> word;) text += word + " ";
    check_says("docs/reference/scores.md", text);
}

// What the results say: of all scored passes, and of causal ones from 8Ki tokens per GPU on; with warm rings and
// without them. The naive guess is compute + transfer, from the same durations.
BOOST_AUTO_TEST_CASE(the_results_say_the_errors_of_today_beside_those_of_naive_guesses) {
    const auto errors = [](const auto& counts, bool with_warm) {
        PassErrors found;
        std::size_t rings = 0;
        const auto add = [&](const std::vector<ScoredRing>& some) {
            for (const auto& ring : some) {
                if (!counts(ring)) continue;
                ++rings;
                for (const auto& pass : ring.passes) found.add(pass);
            }
        };
        add(scores().rings);
        if (with_warm) add(scores().warm);
        return std::pair(rings, found);
    };
    const auto is_of = [](const std::string& gpu) {
        return [gpu](const ScoredRing& ring) { return ring.machine.find(gpu) != std::string::npos; };
    };
    const auto on_gpus = [](const ScoredRing& ring) { return ring.transport == "copy" || ring.transport == "nccl"; };
    const auto row_of_all = [&](const std::string& name, const auto& counts, bool with_warm) {
        const auto [rings, found] = errors(counts, with_warm);
        const auto model = score(found.model);
        return fmt::format("| {} | {} | {:.1f} % | {:.1f} % | {:.1f} % | {:.1f} % |", name, rings, 100 * model.mean,
                           100 * model.p95, 100 * model.most, 100 * score(found.serial).mean);
    };
    check_says(results, row_of_all("two and four H100", is_of("h100"), false));
    check_says(results, row_of_all("two and four H100, warm rings too", is_of("h100"), true));
    check_says(results, row_of_all("two and four H200, earlier kernels", is_of("h200"), false));
    check_says(results, row_of_all("all GPUs", on_gpus, false));
    check_says(results, row_of_all("all GPUs, warm rings too", on_gpus, true));
    const auto [count, of_all] = errors(on_gpus, false);
    const auto all = score(of_all.model);
    check_says("README.md",
               fmt::format("Over {} rings the predicted time of a pass is off by {:.1f} % on average, and by at most "
                           "{:.1f} % for 95 of 100 passes; a naive guess is off by {:.1f} %",
                           count, 100 * all.mean, 100 * all.p95, 100 * score(of_all.serial).mean));

    // In %. A better model may say less, none may say more; the text has one digit.
    const std::map<std::string, double> most_said{{"2xh200 copy", 1.8}, {"2xh200 nccl", 2.6}, {"4xh200 copy", 3.7},
                                                  {"4xh200 nccl", 5.7}, {"2xh100 copy", 4.0}, {"2xh100 nccl", 4.4},
                                                  {"4xh100 copy", 5.1}, {"4xh100 nccl", 3.5}};
    // Rings of 8Ki tokens alone: all predicted too short, which the naive guess makes up for.
    const std::string naive_is_better = "4xh100 copy";
    const std::map<std::string, std::string> named{{"2xh200", "two H200, earlier kernels"},
                                                   {"4xh200", "four H200, earlier kernels"},
                                                   {"2xh100", "two H100"},
                                                   {"4xh100", "four H100"}};
    constexpr double half_a_digit = 0.05;
    const auto has_warm = [](const std::string& gpus) { return gpus.ends_with("h100"); };
    for (const auto& [gpus, name] : named)
        for (const bool with_warm : {false, true}) {
            if (with_warm && !has_warm(gpus)) continue;
            std::string row = "| " + name + (with_warm ? ", warm rings too |" : " |");
            for (const std::string transport : {"copy", "nccl"}) {
                const auto counts = [&](const ScoredRing& ring) {
                    return ring.record == "throughput_" + gpus + "_schedules" && ring.transport == transport &&
                           ring.tokens_per_rank >= 8192;
                };
                const auto [rings, found] = errors(counts, with_warm);
                const auto model = score(found.model).mean, naive = score(found.serial).mean;
                const auto machine_and_transport = gpus + " " + transport;
                if (!with_warm) {
                    BOOST_TEST((model < naive) == (machine_and_transport != naive_is_better), machine_and_transport);
                    BOOST_TEST(100 * model < most_said.at(machine_and_transport) + half_a_digit, machine_and_transport);
                }
                row += fmt::format(" {:.1f} % ({:.1f} %) |", 100 * model, 100 * naive);
            }
            check_says(results, row);
        }
}

BOOST_AUTO_TEST_CASE(results_say_how_many_pairs_of_layouts_are_ranked_right) {
    auto all = scores().rings;
    all.insert(all.end(), scores().warm.begin(), scores().warm.end());
    const auto found = ranking(all);
    check_says(results, fmt::format("the model picks the faster one in {} of {} pairs", found.right, found.all));
}

BOOST_AUTO_TEST_CASE(the_limits_name_the_largest_errors) {
    std::map<std::string, double> most;
    for (const auto& ring : scores().rings)
        for (const auto& pass : ring.passes)
            most[ring.transport] = std::max(most[ring.transport], 100 * std::abs(pass.error()));
    check_says("docs/reference.md",
               fmt::format("{:.0f} % over NCCL, {:.0f} % over copy engines", most["nccl"], most["copy"]));
}

BOOST_AUTO_TEST_CASE(measured_rotations_are_what_machine_files_say) {
    const auto runs = hdf5::File::open(folder + "results/compare_layouts_2xh200_rotary.h5");
    for (const auto* name : {"4xh200_calibrated"}) {  // which is made of them
        const auto machine = sim::load_machine(folder + "machines/" + name + ".toml");
        Config config;
        config.problem.heads = "32:8";
        config.problem.head_dim = 128;
        config.problem.arithmetic = "bf16";
        config.problem.rotary.base = 500000;
        const auto plan = make_plan({"", "causal", "zigzag", "ring", "", 2, 16384}, problem_from(config.problem));
        for (const auto pass : both_passes) {
            const auto predicted = sim::rotation_seconds(*plan.schedule(pass), machine, 8192);
            // Three layouts rotate as much; the first one measured took 12 to 15 % longer than both others.
            auto measured = runs.dataset(fmt::format("runs/rotation_measured_{}", to_string(pass))).doubles();
            BOOST_REQUIRE(measured.size() == 3u);
            std::ranges::sort(measured);
            BOOST_TEST(std::abs(predicted / measured[1] - 1) < 0.05, name << " " << to_string(pass));
        }
    }
}

// The targets, 10 % of the time and 0.03 of the balance, hold for 95 of 100.
BOOST_AUTO_TEST_CASE(measured_rings_of_two_processors_are_predicted_as_well_as_ever) {
    const auto machine = sim::load_machine(folder + "machines/2cpus_calibrated.toml");
    std::vector<double> errors, balances;
    for (const auto& ring : measured_rings(folder + "results/validate_2cpus.h5")) {
        const auto plan = make_plan(ring.timed);
        for (const auto pass : both_passes) {
            std::vector<double> compute;
            for (const auto& rank :
                 sim::simulate(*plan.schedule(pass), machine, measured_pass(ring.run, pass).options()).ranks)
                compute.push_back(layouts::to_seconds(rank.compute));
            balances.push_back(layouts::imbalance(compute) - balance_of(attend_seconds(ring.run.of(pass).timeline())));
        }
    }
    for (const auto& ring : scores().rings)
        if (ring.record == "validate_2cpus")
            for (const auto& pass : ring.passes) errors.push_back(pass.error());
    const auto time = score(errors), balance = score(balances);
    BOOST_TEST_MESSAGE(
        fmt::format("time: mean {:.2f} %, 95th {:.2f} %, largest {:.2f} %; balance: {:.4f}, {:.4f}, {:.4f}",
                    100 * time.mean, 100 * time.p95, 100 * time.most, balance.mean, balance.p95, balance.most));
    BOOST_TEST(time.p95 < 0.10);
    BOOST_TEST(balance.p95 < 0.03);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments
