#include "experiments/execution/hosts.hpp"

#include "layouts/program/program.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace ringlab::experiments {
namespace {

using processes::Host;

constexpr char field_end = '\x1f', item_end = '\x1e';

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
    return parts;
}

/// Index into `hosts`, by rank.
std::vector<int> host_of_rank(const std::vector<Host>& hosts) {
    std::map<int, int> found;
    for (std::size_t host = 0; host < hosts.size(); ++host)
        for (const int rank : hosts[host].ranks) found[rank] = static_cast<int>(host);
    std::vector<int> all;
    for (const auto& [rank, host] : found) all.push_back(host);
    return all;
}

std::string rank_and_host(std::size_t rank, const std::vector<Host>& hosts) {
    return fmt::format("rank {} on {}", rank, hosts[static_cast<std::size_t>(host_of_rank(hosts)[rank])].name);
}

/// "0-2, 5".
std::string ranks_text(const std::vector<int>& ranks) {
    std::string text;
    for (std::size_t i = 0, end = 0; i < ranks.size(); i = end) {
        for (end = i + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
        text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
        if (end - i > 1) text += fmt::format("-{}", ranks[end - 1]);
    }
    return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", text);
}

/// The first line in which two configurations differ, of each; "nothing" where one has no such line.
std::pair<std::string, std::string> unlike_lines(const std::string& a, const std::string& b) {
    const auto lines_a = split(a, '\n'), lines_b = split(b, '\n');
    for (const auto& line : lines_a)
        if (std::ranges::find(lines_b, line) == lines_b.end()) {
            const auto name = line.substr(0, line.find(" = ") + 3);
            const auto other = std::ranges::find_if(lines_b, [&](const auto& l) { return l.starts_with(name); });
            return {line, other == lines_b.end() ? "nothing of it" : *other};
        }
    const auto more = std::ranges::find_if(
        lines_b, [&](const auto& line) { return std::ranges::find(lines_a, line) == lines_a.end(); });
    return {"nothing of it", more == lines_b.end() ? "another order" : *more};
}

}  // namespace

std::vector<ProcessCard> exchange(processes::Session& session, const ProcessCard& own) {
    const std::string items(1, item_end), fields(1, field_end);
    const auto text =
        fmt::format("{}{}{}{}{}{}", own.version, fields, own.configuration, fields, fmt::join(own.gpus, items), fields);
    std::vector<ProcessCard> cards;
    for (const auto& said : session.tell_all(text)) {
        const auto parts = split(said, field_end);
        // A program of the past may say something else, or nothing at all.
        require(parts.size() >= 2, "a process of another version takes part; start the same program on all hosts");
        cards.push_back(
            {parts[0], parts[1], parts.size() > 2 ? split(parts[2], item_end) : std::vector<std::string>()});
    }
    return cards;
}

void require_alike(const std::vector<ProcessCard>& cards, const std::vector<Host>& hosts) {
    for (std::size_t rank = 1; rank < cards.size(); ++rank) {
        require(cards[rank].version == cards[0].version,
                "{} is version {}, {} is version {}; start the same program on all hosts", rank_and_host(rank, hosts),
                cards[rank].version, rank_and_host(0, hosts), cards[0].version);
        if (cards[rank].configuration == cards[0].configuration) continue;
        const auto [own, root] = unlike_lines(cards[rank].configuration, cards[0].configuration);
        fail("{} was started with {}, {} with {}; give all processes the same arguments", rank_and_host(rank, hosts),
             own, rank_and_host(0, hosts), root);
    }
}

void require_gpus(const std::vector<ProcessCard>& cards, const std::vector<Host>& hosts, bool alone) {
    for (const auto& host : hosts) {
        std::map<std::string, int> taken;
        for (std::size_t place = 0; place < host.ranks.size(); ++place) {
            const int rank = host.ranks[place];
            const auto& gpus = cards[static_cast<std::size_t>(rank)].gpus;
            require(!gpus.empty(), "rank {} sees no GPU on {}; start ranks only where there are GPUs", rank, host.name);
            const auto [known, is_new] = taken.try_emplace(gpus[place % gpus.size()], rank);
            require(
                !alone || is_new,
                "{} has {} ranks ({}) and {} GPU{} for them: ranks {} and {} would share GPU {}, where each needs one "
                "of its own; start fewer ranks there",
                host.name, host.ranks.size(), ranks_text(host.ranks), gpus.size(), gpus.size() == 1 ? "" : "s",
                known->second, rank, known->first);
        }
    }
}

Crossings crossings(const layouts::RingGroup& group, const std::vector<Host>& hosts) {
    const auto host_of = host_of_rank(hosts);
    Crossings found;
    for (int replica = 0; replica < group.replicas; ++replica) {
        std::set<int> of_ring;
        for (int rank = 0; rank < group.ring; ++rank) {
            const auto host = [&](int r) {
                return host_of[static_cast<std::size_t>(group.global_rank(replica, r % group.ring))];
            };
            of_ring.insert(host(rank));
            found.now += host(rank) != host(rank + 1);
        }
        found.least += of_ring.size() > 1 ? static_cast<int>(of_ring.size()) : 0;
    }
    return found;
}

std::int64_t bytes_between_hosts(const layouts::Schedule& schedule, const layouts::RingGroup& group,
                                 const std::vector<Host>& hosts) {
    const auto host_of = host_of_rank(hosts);
    std::int64_t bytes = 0;
    for (int replica = 0; replica < group.replicas; ++replica)
        for (int rank = 0; rank < schedule.ranks(); ++rank) {
            const auto host = [&](int r) { return host_of[static_cast<std::size_t>(group.global_rank(replica, r))]; };
            auto ops = schedule.ops(rank);
            while (const auto* op = ops.next())
                if ((op->kind == layouts::OpKind::send || op->kind == layouts::OpKind::fetch) &&
                    host(rank) != host(op->peer))
                    bytes += op->bytes;
        }
    return bytes;
}

std::string hosts_text(const std::vector<Host>& hosts) {
    std::string text;
    for (const auto& host : hosts)
        text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", host.name, ranks_text(host.ranks));
    return text;
}

std::vector<std::string> host_notes(const layouts::RingGroup& group, const std::vector<Host>& hosts) {
    if (hosts.size() < 2) return {};
    std::vector<std::string> notes{fmt::format("{} hosts: {}", hosts.size(), hosts_text(hosts))};
    const auto [now, least] = crossings(group, hosts);
    if (now > least)
        notes.push_back(fmt::format(
            "{} of {} neighbours of a ring of {} are on another host, where {} would do: place ranks host by "
            "host (mpirun --map-by slot, srun --distribution=block){}",
            now, group.world(), group.ring, least, group.replicas > 1 ? ", or choose the other --placement" : ""));
    return notes;
}

void describe_hosts(RunWriter& run, const Plan& plan, const layouts::RingGroup& group, const std::vector<Host>& hosts) {
    std::vector<std::string> names;
    for (const int host : host_of_rank(hosts)) names.push_back(hosts[static_cast<std::size_t>(host)].name);
    run.attribute("hosts", names, "1", "host of each global rank");
    run.attribute("ring_crossings", crossings(group, hosts).now, "1",
                  "neighbours of a ring that are on different hosts, all replicas");
    for (const auto* schedule : plan.schedules())
        run.attribute(fmt::format("bytes_between_hosts_{}", to_string(schedule->options().pass)),
                      bytes_between_hosts(*schedule, group, hosts), "B",
                      "of messages whose ends are on different hosts, all replicas");
}

}  // namespace ringlab::experiments
