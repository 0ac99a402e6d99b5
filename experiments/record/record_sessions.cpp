#include "experiments/files/files_read.hpp"
#include "experiments/files/resources.hpp"
#include "experiments/record/record.hpp"
#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

// What a record keeps of each invocation that added runs to it: where it ran, and what it read.

namespace ringlab::experiments {
namespace {

const std::string sha256_suffix = "_sha256";

/// Digests by the names of files, as an invocation kept them. Before records listed all files, each that was kept had
/// attributes of its own, by names that `provenance` gives today.
std::map<std::string, std::string> digests_in(const hdf5::Group& session, const Provenance& provenance) {
    std::map<std::string, std::string> digests;
    if (session.has("files")) {
        const auto names = session.texts("files"), all = session.texts("files" + sha256_suffix);
        require(names.size() == all.size(), "{} has {} files and {} digests", session.name(), names.size(), all.size());
        for (std::size_t i = 0; i < names.size(); ++i) digests[names[i]] = all[i];
        return digests;
    }
    for (const auto& [name, value] : provenance.entries())
        if (const auto* path = std::get_if<std::string>(&value); path && session.has(name + sha256_suffix))
            digests[resource_name(*path)] = session.text(name + sha256_suffix);
    return digests;
}

std::vector<FileDigest> digests_now() {
    auto* account = FilesRead::current();
    return account ? account->digests() : std::vector<FileDigest>();
}

}  // namespace

/// The file that this command has read and that held something else when earlier runs were made, in words; "" if there
/// is none.
std::string Record::changed_file() const {
    const auto now = digests_now();
    const auto sessions = file_->group("provenance");
    for (const auto& session : sessions.members()) {
        const auto before = digests_in(sessions.group(session), provenance_);
        for (const auto& [name, sha256] : now)
            if (const auto found = before.find(name); found != before.end() && found->second != sha256)
                return fmt::format("file '{}' has changed: its SHA-256 was {}, now it is {}", name, found->second,
                                   sha256);
    }
    return "";
}

/// Records of the past keep fewer digests.
void Record::note_unknown_files() const {
    const auto sessions = file_->group("provenance");
    std::set<std::string> unknown;
    for (const auto& number : sessions.members()) {
        const auto session = sessions.group(number);
        if (session.has("files")) continue;
        const auto before = digests_in(session, provenance_);
        for (const auto& [name, sha256] : digests_now())
            if (!before.contains(name)) unknown.insert(name);
    }
    if (!unknown.empty())
        fmt::print(stderr,
                   "[note] '{}' was begun by an earlier Ringlab, which kept no digest of '{}': whether it has changed "
                   "since cannot be told\n",
                   name(), fmt::join(unknown, "', '"));
}

void Record::add_session() {
    const auto changed = changed_file();
    require(changed.empty(), "{}", changed);
    const auto files = digests_now();
    std::vector<std::string> names, digests;
    for (const auto& [name, sha256] : files) {
        names.push_back(name);
        digests.push_back(sha256);
    }
    session_ = {static_cast<std::int64_t>(file_->group("provenance").members().size()), files.size()};
    auto group = file_->make_group(fmt::format("provenance/{}", session_->number));
    for (const auto& [name, value] : provenance_.entries()) group.set(name, value);
    if (!FilesRead::current()) return;
    group.set("files", names);
    group.set("files" + sha256_suffix, digests);
}

}  // namespace ringlab::experiments
