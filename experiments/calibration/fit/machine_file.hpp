#pragma once

#include "experiments/options/file_guard.hpp"
#include "sim/machine/machine.hpp"

#include <filesystem>
#include <string>

namespace ringlab::experiments {

/// Writes a calibrated machine file. Returns its path, see FileGuard::write(). If no prediction could be made with the
/// file, or if a memory ratio is 0, it writes nothing and throws Error. This happens on a computer that is busy with
/// other work, where some operations can seem to take no time.
std::filesystem::path write_machine_file(const FileGuard& files, const std::filesystem::path& output,
                                         const std::string& text);

/// The source of a number that `measurements` do not determine. A time is then 0, and a rate unlimited.
std::string not_determined_by(const std::string& measurements);

/// Part of the source of a rate that is higher than the device's data sheet allows.
inline constexpr const char* above_data_sheet = "above the data sheet's rate";

/// Throws Error if a memory ratio was fitted or measured as 0: whatever moves bytes takes longer if they are more.
void require_memory_ratios(const sim::Machine& machine);

/// Prints where a machine file was written, which of its numbers the measurements do not determine, and which rates are
/// higher than a data sheet allows.
void announce_machine_file(const std::filesystem::path& output, const std::string& text);

}  // namespace ringlab::experiments
