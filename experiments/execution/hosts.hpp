#pragma once

#include "experiments/options/case.hpp"
#include "experiments/record/run_writer.hpp"
#include "layouts/basics/ring_group.hpp"
#include "processes/session.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace ringlab::experiments {

/// How a process of a run was started, and its GPUs.
struct ProcessCard {
    std::string version;                 ///< version_text()
    std::string configuration;           ///< the options that decide results
    std::vector<std::string> gpus = {};  ///< PCI addresses of those that it sees, in its order
};

/// The ProcessCard of every process, by rank. All processes call it.
std::vector<ProcessCard> exchange(processes::Session& session, const ProcessCard& own);

/// Throws Error that names rank, host and both values if a process is of another version than rank 0, or was given
/// other arguments.
void require_alike(const std::vector<ProcessCard>& cards, const std::vector<processes::Host>& hosts);

/// Throws Error unless every rank has a GPU and, if `alone`, none that another one has. Rank r takes the one of its
/// place on its host, of those that it sees.
void require_gpus(const std::vector<ProcessCard>& cards, const std::vector<processes::Host>& hosts, bool alone);

/// How a ring lies over hosts: pairs of neighbours r, r + 1 on different ones, of all replicas, and how many there
/// would be if ranks came host by host.
struct Crossings {
    int now = 0, least = 0;
};
Crossings crossings(const layouts::RingGroup& group, const std::vector<processes::Host>& hosts);

/// Bytes of all messages of a pass, all replicas, whose ends are on different hosts.
std::int64_t bytes_between_hosts(const layouts::Schedule& schedule, const layouts::RingGroup& group,
                                 const std::vector<processes::Host>& hosts);

/// "a (ranks 0-2), b (rank 3)".
std::string hosts_text(const std::vector<processes::Host>& hosts);

/// Note for the user of a run on several hosts; empty on one host.
std::vector<std::string> host_notes(const layouts::RingGroup& group, const std::vector<processes::Host>& hosts);

/// The host of every rank, and what goes between them.
void describe_hosts(RunWriter& run, const Plan& plan, const layouts::RingGroup& group,
                    const std::vector<processes::Host>& hosts);

}  // namespace ringlab::experiments
