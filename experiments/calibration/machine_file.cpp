#include "experiments/calibration/machine_file.hpp"

#include "experiments/record/record_files.hpp"
#include "layouts/require.hpp"
#include "sim/machine.hpp"

#include <span>

namespace ringlab::experiments {

void write_machine_file(const std::filesystem::path& output, const std::string& text) {
    try {
        sim::parse_machine(text, output.string());
    } catch (const Error& error) {
        fail("what was measured makes no machine ({}); try again when this computer does nothing else", error.what());
    }
    replace_file(followed(output), std::as_bytes(std::span(text)));
}

}  // namespace ringlab::experiments
