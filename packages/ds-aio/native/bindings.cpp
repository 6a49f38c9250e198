// What Python sees: files, requests, engines, memory.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "engine.hpp"

namespace py = pybind11;
using namespace ds_aio;

namespace {

Backend backend_named(const std::string& name) {
    if (name == "io_uring") return Backend::io_uring;
    if (name == "linux_aio") return Backend::linux_aio;
    if (name == "threads") return Backend::threads;
    throw py::value_error("no native backend is named " + name);
}

// A request as Python holds it: keeps the memory alive, and never lets go of it while it is in use.
class Handle {
public:
    Handle(std::shared_ptr<Job> job, py::object keep)
        : job_(std::move(job)), keep_(std::move(keep)), process_(::getpid()) {}
    ~Handle() {
        if (process_ != ::getpid()) {
            // Nobody works on it in a forked child; whoever waited for it there would never return.
            new std::shared_ptr<Job>(std::move(job_));
            return;
        }
        if (job_->finished()) return;
        py::gil_scoped_release unlocked;
        job_->wait();
    }
    bool done() {
        if (!job_->finished()) return false;
        keep_ = py::none();
        return true;
    }
    // Blocks; signals are handled meanwhile.
    void wait() {
        while (!waited(std::chrono::milliseconds(100)))
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        keep_ = py::none();
    }
    py::tuple outcome() const {
        const Outcome o = job_->outcome();
        return py::make_tuple(o.done, o.error, o.ended, o.offset);
    }

private:
    bool waited(std::chrono::milliseconds time) const {
        if (job_->finished()) return true;
        if (process_ != ::getpid())
            throw std::runtime_error("this transfer runs in the process that forked this one");
        py::gil_scoped_release unlocked;
        return job_->wait_for(time);
    }
    std::shared_ptr<Job> job_;
    py::object keep_;
    const pid_t process_;
};

// A forked child has an engine but none of its threads: to destroy what they wait on would never end.
struct InItsProcess {
    void operator()(Engine* engine) const {
        if (engine->alive_here()) delete engine;
    }
};
using EngineHolder = std::unique_ptr<Engine, InItsProcess>;

using Pairs = std::vector<std::pair<uint64_t, uint64_t>>;

std::shared_ptr<Job> make_job(bool write, const std::shared_ptr<File>& file, const Pairs& ranges,
                              const Pairs& segments) {
    std::vector<Range> r;
    std::vector<Segment> s;
    uint64_t wanted = 0, given = 0;
    for (const auto& [offset, length] : ranges) {
        r.push_back({offset, length});
        wanted += length;
    }
    for (const auto& [address, length] : segments) {
        s.push_back({reinterpret_cast<char*>(address), length});
        given += length;
    }
    if (wanted != given) throw py::value_error("ranges and segments differ in length");
    return std::make_shared<Job>(write ? Kind::write : Kind::read, file, std::move(r), std::move(s));
}

void check_here(const Engine& engine) {
    if (!engine.alive_here())
        throw std::runtime_error(
            "this engine belongs to the process that forked this one: make one after the fork");
    if (engine.stopping()) throw std::runtime_error("this engine is closed");
}

std::unique_ptr<Handle> submit(Engine& engine, bool write, const std::shared_ptr<File>& file,
                               const Pairs& ranges, const Pairs& segments, py::object keep, bool here) {
    check_here(engine);
    auto job = make_job(write, file, ranges, segments);
    {
        py::gil_scoped_release unlocked;
        if (!here || !engine.try_here(job)) engine.submit(job);
    }
    return std::make_unique<Handle>(std::move(job), std::move(keep));
}

// An errno when the kernel refuses such a queue, else 0.
int probe(const std::string& backend, unsigned depth) {
    try {
        make_queue(backend_named(backend), depth);
    } catch (const SystemError& error) {
        return error.number;
    }
    return 0;
}

void bind_faults(py::module_& m) {
    py::class_<Faults>(m, "Faults")
        .def(py::init<>())
        .def_readwrite("report_alignment", &Faults::report_alignment)
        .def_readwrite("enforce_alignment", &Faults::enforce_alignment)
        .def_readwrite("refuse_open", &Faults::refuse_open)
        .def_readwrite("refuse_transfer", &Faults::refuse_transfer)
        .def_readwrite("fail_errno", &Faults::fail_errno)
        .def_readwrite("fail_offset", &Faults::fail_offset)
        .def_readwrite("fail_times", &Faults::fail_times)
        .def_readwrite("short_limit", &Faults::short_limit);
}

void bind_file(py::module_& m) {
    py::class_<File, std::shared_ptr<File>>(m, "File")
        .def(py::init([](const std::string& path, bool write, bool create, bool truncate, bool direct,
                         const Faults& faults) {
                 py::gil_scoped_release release;
                 return std::make_shared<File>(path, write, create, truncate, direct, faults);
             }),
             py::arg("path"), py::kw_only(), py::arg("write"), py::arg("create"), py::arg("truncate"),
             py::arg("direct"), py::arg("faults"))
        .def("size", &File::size)
        .def("sync", &File::sync, py::arg("data_only"), py::call_guard<py::gil_scoped_release>())
        .def("truncate", &File::truncate, py::arg("length"), py::call_guard<py::gil_scoped_release>())
        .def("close", &File::close)
        .def_property_readonly("direct", &File::uses_direct)
        .def_property_readonly("refused", &File::refused)
        .def_property_readonly("regular", &File::regular)
        .def_property_readonly("device", &File::device)
        .def_property_readonly("memory_alignment", [](const File& f) { return f.alignment().memory; })
        .def_property_readonly("offset_alignment", [](const File& f) { return f.alignment().offset; })
        .def_property_readonly("reason", [](const File& f) { return f.alignment().reason; });
}

}  // namespace

PYBIND11_MODULE(_native, m) {
    m.doc() = "Native side of ds_aio: see engine.py for the names to use.";
    py::register_exception_translator([](std::exception_ptr pending) {
        try {
            if (pending) std::rethrow_exception(pending);
        } catch (const SystemError& error) {
            errno = error.number;
            PyErr_SetFromErrno(PyExc_OSError);
        }
    });
    bind_faults(m);
    bind_file(m);
    py::class_<Handle>(m, "Request")
        .def("done", &Handle::done)
        .def("wait", &Handle::wait)
        .def("outcome", &Handle::outcome, "(bytes done, errno, file ended early, offset of the fault)");
    py::class_<Engine, EngineHolder>(m, "Engine")
        .def(py::init([](const std::string& backend, uint64_t block_size, unsigned queue_depth,
                         bool single_submit, bool overlap_events, unsigned num_threads,
                         const Faults& faults) {
                 const Backend named = backend_named(backend);
                 py::gil_scoped_release release;
                 return EngineHolder(new Engine(
                     named,
                     Settings{block_size, queue_depth, single_submit, overlap_events}, num_threads, faults));
             }),
             py::arg("backend"), py::kw_only(), py::arg("block_size"), py::arg("queue_depth"),
             py::arg("single_submit"), py::arg("overlap_events"), py::arg("num_threads"), py::arg("faults"))
        .def("submit", &submit, py::arg("write"), py::arg("file"), py::arg("ranges"), py::arg("segments"),
             py::arg("keep"), py::arg("here"))
        .def("close", &Engine::close, py::call_guard<py::gil_scoped_release>());
    py::class_<Buffer>(m, "Buffer", py::buffer_protocol())
        .def(py::init<uint64_t, uint64_t, bool>(), py::arg("size"), py::kw_only(), py::arg("phase"),
             py::arg("lock"))
        .def_property_readonly("address", [](const Buffer& b) { return reinterpret_cast<uintptr_t>(b.data()); })
        .def_property_readonly("locked", &Buffer::locked)
        .def_property_readonly("lock_error", &Buffer::lock_error)
        .def("__len__", &Buffer::size)
        .def_buffer([](Buffer& b) {
            return py::buffer_info(reinterpret_cast<uint8_t*>(b.data()), static_cast<py::ssize_t>(b.size()));
        });
    m.def("probe", &probe, py::arg("backend"), py::arg("depth"), py::call_guard<py::gil_scoped_release>());
}
