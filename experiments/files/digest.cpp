#include "experiments/files/digest.hpp"

#include "layouts/basics/require.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <system_error>
#include <vector>

namespace ringlab::experiments {
namespace {

class Sha256 {
public:
    Sha256() { require(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr), "{}", no_digest); }

    void update(std::span<const std::byte> bytes) {
        require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()), "{}", no_digest);
    }

    Digest digest() {
        Digest made;
        require(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(made.data()), nullptr), "{}",
                no_digest);
        return made;
    }

private:
    static constexpr const char* no_digest = "OpenSSL computes no SHA-256 here";

    std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

}  // namespace

Digest digest_of(std::span<const std::byte> bytes) {
    Sha256 hash;
    hash.update(bytes);
    return hash.digest();
}

Digest digest_of_file(const std::filesystem::path& path) {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    require(file.good(), "cannot open {}: {}", path.string(), std::generic_category().message(errno));
    Sha256 hash;
    std::vector<char> buffer(1 << 16);
    while (file.good()) {
        file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
        hash.update(std::as_bytes(std::span(buffer.data(), static_cast<std::size_t>(file.gcount()))));
    }
    require(file.eof(), "cannot read {}: {}", path.string(), std::generic_category().message(errno));
    return hash.digest();
}

std::string to_text(const Digest& digest) {
    std::string text;
    for (const auto byte : digest) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    return text;
}

}  // namespace ringlab::experiments
