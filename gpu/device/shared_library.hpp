#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

namespace ringlab::gpu {

/// A library that is loaded at run time and not linked. It is never unloaded, because CUDA's libraries may fail then.
class SharedLibrary {
public:
    /// Loads the first of these names that can be loaded. If there is none, loaded() is false and why_not() is the
    /// loader's message.
    explicit SharedLibrary(const std::vector<std::string>& names) {
        for (const auto& name : names) {
            handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (handle_) return;
            const char* reason = dlerror();
            if (why_not_.empty()) why_not_ = reason ? reason : "no library " + name;
        }
    }

    bool loaded() const { return handle_ != nullptr; }
    const std::string& why_not() const { return why_not_; }
    void* handle() const { return handle_; }

    /// The function of that name, or null if the library has none.
    template <class Function>
    Function* find(const char* name) const {
        return reinterpret_cast<Function*>(dlsym(handle_, name));
    }

private:
    void* handle_ = nullptr;
    std::string why_not_;
};

}  // namespace ringlab::gpu
