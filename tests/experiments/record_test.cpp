#include "record_python.hpp"
#include "record_support.hpp"

#include <fmt/format.h>
#include <boost/test/data/test_case.hpp>

#include <cmath>
#include <functional>
#include <limits>

namespace ringlab::experiments::test {
namespace {

/// Opens every object below and checks what the record promises of each dataset; returns how many datasets there are.
int check_every_dataset(const hdf5::Group& group, const std::string& path) {
    int count = 0;
    for (const auto& name : group.members()) {
        const auto full = path + "/" + name;
        if (group.is_group(name)) {
            count += check_every_dataset(group.group(name), full);
        } else {
            const auto dataset = group.dataset(name);
            BOOST_TEST(!dataset.text("units").empty(), full);
            BOOST_TEST(!dataset.text("description").empty(), full);
            BOOST_TEST((dataset.shape().empty() || dataset.has("DIMENSION_LIST") || dataset.has("CLASS")), full);
            ++count;
        }
    }
    return count;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(record)

BOOST_AUTO_TEST_CASE(a_run_comes_back_as_it_was_committed) {
    const Folder folder;
    const auto path = folder / "record.h5";
    {
        Record record(path, RecordMode::create, header(), fixed_provenance());
        BOOST_TEST(!record.has("first run"));
        record.commit("first run", sample_run(1));
        BOOST_TEST(record.has("first run"));
        BOOST_TEST(record.numbers("first run", "imbalance") == std::vector<double>{2.0});
        BOOST_TEST(record.text("first run", "layout") == "zigzag");
        BOOST_TEST(record.number("first run", "ranks") == 8);
    }
    const auto file = open(path);
    BOOST_TEST(file.text("experiment") == "record_test");
    BOOST_TEST(file.text("configuration") == header().configuration);
    BOOST_TEST(runs_of(file) == std::vector<std::string>{"first run"});
    const auto times = file.dataset("measured/cpu_time");
    BOOST_TEST(times.shape() == (std::vector<std::int64_t>{1, 3, 8}));
    BOOST_TEST(times.scales() == (std::vector<std::string>{"run", "repeat", "rank"}));
    BOOST_TEST(times.doubles()[23] == 1 + 23 * 1e-3);
    BOOST_TEST(times.text("units") == "s");
    BOOST_TEST(file.dataset("measured/pairs").integers() == std::vector<std::int64_t>(8, 1LL << 40));
    BOOST_TEST(!file.dataset("measured/pairs").has("_FillValue"));
    BOOST_TEST(file.dataset("names").texts() == (std::vector<std::string>{"o", "lse", "dq"}));
    BOOST_TEST(file.dataset("policy").texts() == (std::vector<std::string>{"carry", "partials"}));
    BOOST_TEST(file.dataset("runs/devices").texts() == std::vector<std::string>{"one; two"});
    BOOST_TEST(file.dataset("runs/tolerance").doubles() == std::vector<double>{1e-13});
    BOOST_TEST(file.dataset("runs/tolerance").text("description") == "what passes");
    // cpu_time, pairs, by_policy, imbalance, names; 4 columns, name and session; lengths of 4 dimensions; 17 columns of
    // spans, first and count; scales run, policy, rank, repeat, tensor, source, pass, span
    BOOST_TEST(check_every_dataset(file, "") == 5 + 6 + 4 + 19 + 8);
}

// What a reader of the flat table and of the datasets relies on when runs are not alike.
BOOST_AUTO_TEST_CASE(runs_of_different_sizes_stand_side_by_side_and_what_is_missing_shows) {
    const Folder folder;
    const auto path = folder / "record.h5";
    const auto run_of = [](std::int64_t ranks, bool complete) {
        RunWriter run;
        run.attribute("ranks", ranks, "1", "ring size");
        if (complete) run.attribute("gpus", ranks, "1", "number of GPUs");
        std::vector<double> times;
        std::vector<std::int64_t> pairs;
        for (std::int64_t i = 0; i < 2 * ranks; ++i) times.push_back(static_cast<double>(10 * ranks + i));
        for (std::int64_t i = 0; i < ranks * ranks; ++i) pairs.push_back(100 * ranks + i);
        run.dataset("measured/time", times, {{"repeat", 2}, {"rank", ranks}}, "s", "x");
        run.dataset("work/pairs", pairs, {{"rank", ranks}, {"owner", ranks}}, "1", "x");
        for (const char* machine : {"slow", "fast"})
            if (complete || machine == std::string("fast"))
                run.dataset("predicted/time", std::vector<double>(static_cast<std::size_t>(ranks), machine[0]),
                            {Dimension::at("machine", machine), {"rank"}}, "s", "x");
        return run;
    };
    const std::vector<std::pair<std::int64_t, bool>> sizes{{2, true}, {20, false}, {3, true}};
    const auto check = [&](const Record& record) {
        for (const auto& [ranks, complete] : sizes) {
            const auto name = fmt::format("P={}", ranks);
            const auto size = static_cast<std::size_t>(ranks);
            BOOST_TEST(record.number(name, "ranks") == static_cast<double>(ranks));
            const auto times = record.numbers(name, "measured/time");
            BOOST_REQUIRE(times.size() == 2 * size);
            for (std::size_t i = 0; i < times.size(); ++i)
                BOOST_TEST(times[i] == static_cast<double>(10 * ranks) + static_cast<double>(i));
            const auto pairs = record.numbers(name, "work/pairs");
            BOOST_REQUIRE(pairs.size() == size * size);
            for (std::size_t i = 0; i < pairs.size(); ++i)
                BOOST_TEST(pairs[i] == static_cast<double>(100 * ranks) + static_cast<double>(i));
            BOOST_TEST(record.numbers(name, "predicted/time", {{"machine", "fast"}}) == std::vector<double>(size, 'f'));
            const auto slow = record.numbers(name, "predicted/time", {{"machine", "slow"}});
            for (const auto value : slow) BOOST_TEST((complete ? value == 's' : std::isnan(value)));
        }
    };
    {
        Record record(path, RecordMode::create, header(), fixed_provenance());
        record.commit("P=2", run_of(2, true));
        record.commit("P=20", run_of(20, false));
    }
    Record record(path, RecordMode::resume, header(), fixed_provenance());
    record.commit("P=3", run_of(3, true));
    check(record);
    BOOST_TEST(contains(error_of([&] { record.numbers("P=2", "predicted/time", {{"machine", "none"}}); }), "'none'"));

    const auto file = open(path);
    BOOST_TEST(file.dataset("measured/time").shape() == (std::vector<std::int64_t>{3, 2, 20}));
    BOOST_TEST(std::isnan(file.dataset("measured/time").doubles()[2]));
    const auto pairs = file.dataset("work/pairs"), gpus = file.dataset("runs/gpus"), ranks = file.dataset("runs/ranks");
    BOOST_TEST(pairs.has("_FillValue"));
    BOOST_TEST(pairs.integers()[2] == std::numeric_limits<std::int64_t>::min());
    BOOST_TEST(gpus.integers() == (std::vector<std::int64_t>{2, std::numeric_limits<std::int64_t>::min(), 3}));
    BOOST_TEST(gpus.has("_FillValue"));
    BOOST_TEST(!ranks.has("_FillValue"));
    BOOST_TEST(file.dataset("lengths/rank").integers() == (std::vector<std::int64_t>{2, 20, 3}));
    BOOST_TEST(file.dataset("rank").integers().back() == 19);
}

BOOST_AUTO_TEST_CASE(a_run_that_does_not_fit_the_others_is_refused_and_leaves_them_as_they_are) {
    const Folder folder;
    const auto path = folder / "record.h5";
    Record record(path, RecordMode::create, header(), fixed_provenance());
    record.commit("one", sample_run(1));
    const auto before = bytes_of(path);
    const auto refused = [&](const char* why, const std::function<void(RunWriter&)>& add) {
        RunWriter run;
        add(run);
        const auto text = error_of([&] { record.commit("two", run); });
        BOOST_TEST(contains(text, why), text);
        BOOST_TEST(one_line(text));
        BOOST_TEST((bytes_of(path) == before));
        BOOST_TEST(record.runs() == std::vector<std::string>{"one"});
    };
    refused("another type", [](RunWriter& run) { run.attribute("ranks", 1.5); });
    refused("other dimensions", [](RunWriter& run) {
        run.dataset("measured/cpu_time", std::vector<double>(3), {{"rank", 3}}, "s", "x");
    });
    refused("other coordinates", [](RunWriter& run) {
        run.dimension("policy", std::vector<std::string>{"carry", "running"}, "1", "x");
    });
    record.commit("two", sample_run(2, 4));
    BOOST_TEST(record.runs().size() == 2u);
}

BOOST_AUTO_TEST_CASE(a_timeline_comes_back_to_the_picosecond) {
    const Folder folder;
    const auto path = folder / "record.h5";
    const auto timeline = small_timeline(16, 200);  // large enough to be compressed
    {
        Record record(path, RecordMode::create, header(), fixed_provenance());
        RunWriter first, second;
        first.timeline("m", "backward", small_timeline(2, 3));
        record.commit("first", first);
        second.timeline("m", "forward", timeline);
        second.timeline("n", "forward", layouts::Timeline{4, {}});
        record.commit("second", second);
        record.finish();
    }
    const auto file = open(path);
    const auto spans = file.group("spans");
    BOOST_TEST(file.dataset("source").texts() == (std::vector<std::string>{"m", "n"}));
    BOOST_TEST(file.dataset("pass").texts() == (std::vector<std::string>{"backward", "forward"}));
    const auto none = std::numeric_limits<std::int64_t>::min();  // by run, source, pass
    BOOST_TEST(spans.dataset("first").integers() ==
               (std::vector<std::int64_t>{0, none, none, none, none, 6, none, 3206}));
    BOOST_TEST(spans.dataset("count").integers() ==
               (std::vector<std::int64_t>{6, none, none, none, none, 3200, none, 0}));
    const auto begin = spans.dataset("begin").doubles(), busy = spans.dataset("busy").doubles();
    const auto kind = spans.dataset("kind").integers(), bytes = spans.dataset("bytes").integers(),
               peer = spans.dataset("peer").integers(), run = spans.dataset("run").integers();
    BOOST_REQUIRE(begin.size() == 6 + timeline.spans.size());
    for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
        const auto& span = timeline.spans[i];
        BOOST_TEST(run[6 + i] == 1);
        BOOST_TEST(layouts::to_picoseconds(begin[6 + i]) == span.begin);
        BOOST_TEST(layouts::to_picoseconds(busy[6 + i]) == span.busy);
        BOOST_TEST(kind[6 + i] == static_cast<int>(span.kind));
        BOOST_TEST(bytes[6 + i] == span.bytes);
        BOOST_TEST(peer[6 + i] == span.peer);
    }
    BOOST_TEST(spans.dataset("kind").text("flag_meanings") ==
               "attend merge add send receive fetch copy expand compress");
    BOOST_TEST(spans.dataset("pool").text("flag_meanings") == "K,V dK,dV Q state O dO dQ latent dlatent");
    // 3200 spans of 17 columns and an index, 95 bytes each uncompressed.
    BOOST_TEST(fs::file_size(path) < 3200 * 95 / 2);
}

BOOST_AUTO_TEST_CASE(empty_and_one_element_things_are_kept_too) {
    const Folder folder;
    const auto path = folder / "record.h5";
    {
        Record record(path, RecordMode::create, header(), fixed_provenance());
        RunWriter run;
        run.timeline("measured", "forward", layouts::Timeline{4, {}});
        run.dataset("none", std::vector<double>{}, {{"nothing", 0}}, "1", "no values");
        run.dataset("one", std::vector<std::int64_t>{7}, {}, "1", "one value");
        record.commit("empty", run);
        record.commit("nothing at all", RunWriter());
        BOOST_TEST(record.numbers("empty", "one") == std::vector<double>{7});
        BOOST_TEST(record.numbers("empty", "none").empty());
    }
    const auto file = open(path);
    BOOST_TEST(file.dataset("spans/begin").doubles().empty());
    BOOST_TEST(file.dataset("one").integers() ==
               (std::vector<std::int64_t>{7, std::numeric_limits<std::int64_t>::min()}));
    BOOST_TEST(runs_of(file) == (std::vector<std::string>{"empty", "nothing at all"}));
}

BOOST_AUTO_TEST_CASE(a_run_that_contradicts_itself_is_refused_with_the_reason) {
    RunWriter run;
    const std::vector<double> six(6, 1.0);
    run.dataset("a", six, {"rank"}, "s", "x");
    const auto refused = [&](const char* why, auto call) {
        const auto text = error_of(call);
        BOOST_TEST(contains(text, why), text);
    };
    refused("already", [&] { run.dataset("a", six, {"rank"}, "s", "x"); });
    refused("unit", [&] { run.dataset("b", six, {"rank"}, "", "x"); });
    refused("description", [&] { run.dataset("b", six, {"rank"}, "s", ""); });
    refused("has length 6", [&] { run.dataset("b", six, {{"rank", 5}}, "s", "x"); });
    refused("no multiple", [&] { run.dataset("b", std::vector<double>(7), {"repeat", "rank"}, "s", "x"); });
    refused("unknown length", [&] { run.dataset("b", six, {"u", "v"}, "s", "x"); });
    refused("ask for 6", [&] { run.dataset("b", std::vector<double>(12), {"rank"}, "s", "x"); });
    refused("ask for 1", [&] { run.dataset("b", six, {}, "s", "x"); });
    refused("cannot name", [&] { run.dataset("b//c", six, {"rank"}, "s", "x"); });
    refused("cannot name", [&] { run.dataset("../b", six, {"rank"}, "s", "x"); });
    refused("its coordinates 2", [&] { run.dimension("rank", std::vector<double>(2), "1", "x"); });
    run.attribute("layout", "zigzag");
    refused("already", [&] { run.attribute("layout", "striped"); });
}

BOOST_AUTO_TEST_CASE(a_run_that_hdf5_cannot_store_leaves_the_record_as_it_was) {
    const Folder folder;
    const auto path = folder / "record.h5";
    Record record(path, RecordMode::create, header(), fixed_provenance());
    record.commit("good", sample_run(1));
    const auto before = bytes_of(path);
    RunWriter run;
    run.dataset("a", std::vector<double>{1}, {}, "1", "a dataset");
    run.dataset("a/b", std::vector<double>{1}, {}, "1", "a dataset inside a dataset");
    const auto text = error_of([&] { record.commit("bad", run); });
    BOOST_TEST(contains(text, "'bad' is not recorded"), text);
    BOOST_TEST(one_line(text));
    BOOST_TEST((bytes_of(path) == before));
    record.commit("after", sample_run(2));
    BOOST_TEST(record.runs() == (std::vector<std::string>{"good", "after"}));
    BOOST_TEST(contains(error_of([&] { record.commit("good", run); }), "already"));
    BOOST_TEST(contains(error_of([&] { record.commit("a/b", run); }), "'/'"));
}

// A reader that knows nothing of Ringlab: what notebooks rely on.
BOOST_AUTO_TEST_CASE(h5py_finds_units_descriptions_dimensions_and_enumerations,
                     *boost::unit_test::precondition(has_h5py)) {
    const Folder folder;
    const auto path = folder / "record.h5", script = folder / "read.py";
    {
        Record record(path, RecordMode::create, header(), fixed_provenance());
        record.commit("a", sample_run(1));
        record.commit("b", sample_run(2, 4, 1, 500));
        record.finish();
    }
    put_bytes(script, R"(
import sys, h5py, numpy as np
f = h5py.File(sys.argv[1], 'r')
assert f.attrs['ringlab_schema'] == 4 and isinstance(f.attrs['experiment'], str)
assert f['run'].asstr()[()].tolist() == ['a', 'b']
assert f['provenance/0'].attrs['date'] == '2024-01-01T00:00:00Z'
datasets = 0
def look(name, d):
    global datasets
    if not isinstance(d, h5py.Dataset): return
    datasets += 1
    assert isinstance(d.attrs['units'], str) and d.attrs['units'], name
    assert isinstance(d.attrs['description'], str) and d.attrs['description'], name
    d[()]
    if d.attrs.get('CLASS') == b'DIMENSION_SCALE': return
    for axis, dimension in enumerate(d.dims):
        assert len(dimension) == 1, (name, axis)
        assert dimension[0].shape == (d.shape[axis],), (name, axis)
f.visititems(look)
assert datasets == 42, datasets
# The flat table in three lines.
table = {name: column.asstr()[()] if h5py.check_string_dtype(column.dtype) else column[()] for name, column in f['runs'].items()}
assert all(len(column) == 2 for column in table.values())
assert table['layout'].tolist() == ['zigzag', 'zigzag'] and table['ranks'].tolist() == [8, 4], table
assert table['name'].tolist() == ['a', 'b'] and table['devices'][0] == 'one; two'
assert [d[0].name for d in f['measured/cpu_time'].dims] == ['/run', '/repeat', '/rank']
assert f['measured/cpu_time'].shape == (2, 3, 8)
assert f['measured/cpu_time'][0, 2, 7] == 1 + 23e-3 and np.isnan(f['measured/cpu_time'][1, 0, 4])
assert f['policy'].asstr()[()].tolist() == ['carry', 'partials']
t = f['spans']
kind = dict(zip(t['kind'].attrs['flag_values'].tolist(), t['kind'].attrs['flag_meanings'].split()))
first, count = t['first'][1, 0, 0], t['count'][1, 0, 0]
assert (first, count) == (240, 2000)
assert [kind[k] for k in t['kind'][first:first + 4]] == ['attend', 'send', 'attend', 'send'], kind
assert t['begin'].compression == 'gzip' and t['begin'].fletcher32
assert abs(t['end'][first + 1] - 1.999999999e-3) < 1e-15 and t['end'].attrs['units'] == 's'
)");
    const auto result = run_python(script.string() + " " + path.string());
    BOOST_TEST(result.status == 0, result.output);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ringlab::experiments::test
