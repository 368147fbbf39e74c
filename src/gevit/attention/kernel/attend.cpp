// The C interface: threads, the order of sums, and errors as numbers.
#include <atomic>

#include "worker.h"

namespace gevit {
namespace {

// Runs body(worker, i) for i in [0, count) on all threads, each with a worker of its own.
template <int Order, class Body>
int with_workers(const Problem& problem, const Inputs& inputs, bool backward, int64_t count, Body&& body) {
    std::atomic<bool> failed{false};
#pragma omp parallel num_threads(int(std::min<int64_t>(problem.threads, count)))
    {
        const FlushDenormals flush;
        Worker<Order> worker(problem, inputs, backward);
        if (!worker.usable()) failed = true;
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < count; ++i)
            if (!failed) body(worker, i);
    }
    return failed ? GEVIT_OUT_OF_MEMORY : GEVIT_OK;
}

template <class Body>
int in_parallel(const Problem& problem, const Inputs& inputs, bool backward, int64_t count, Body&& body) {
    switch (problem.common_order()) {
        case 1: return with_workers<1>(problem, inputs, backward, count, body);
        case 4: return with_workers<4>(problem, inputs, backward, count, body);
        case 8: return with_workers<8>(problem, inputs, backward, count, body);
        default: return with_workers<0>(problem, inputs, backward, count, body);
    }
}

// Each group of tasks sums its gradients of the tables in a fixed order, and the groups are summed in a fixed order, so
// that the result does not depend on the number of threads. Groups depend on the shape only, and bound the memory.
int64_t groups_of(int64_t tasks, int64_t table) {
    constexpr int64_t MOST_NUMBERS = 1 << 23;
    return std::min(tasks, std::max<int64_t>(64, MOST_NUMBERS / std::max<int64_t>(1, table)));
}

void sum_groups(const std::vector<Real>& partial, size_t begin, size_t count, size_t stride, Real* to) {
    for (size_t i = 0; i < count; ++i) {
        double total = 0;
        for (size_t at = begin + i; at < partial.size(); at += stride) total += partial[at];
        to[i] = Real(total);
    }
}

template <class Body>
int without_exceptions(const gevit_shape* shape, Body&& body) {
    try {
        if (!Problem::sensible(*shape)) return GEVIT_BAD_SHAPE;
        return body(Problem(*shape));
    } catch (const std::bad_alloc&) {
        return GEVIT_OUT_OF_MEMORY;
    } catch (...) {
        return GEVIT_BAD_SHAPE;
    }
}

}  // namespace
}  // namespace gevit

using namespace gevit;

extern "C" int gevit_attend_forward(const Real* query, const Real* key, const Real* value, const Real* space,
                                    const Real* element, const int32_t* offset_index, const int32_t* element_index,
                                    Real* out, const gevit_shape* shape) {
    return without_exceptions(shape, [&](const Problem& problem) {
        const Inputs inputs{query, key, value, space, element, offset_index, element_index};
        if (problem.tasks == 0) return int(GEVIT_OK);
        return in_parallel(problem, inputs, false, problem.tasks, [&](auto& worker, int64_t task) {
            if (shape->dropout > 0) worker.template forward<true>(task, out);
            else worker.template forward<false>(task, out);
        });
    });
}

extern "C" int gevit_attend_backward(const Real* query, const Real* key, const Real* value, const Real* space,
                                     const Real* element, const int32_t* offset_index, const int32_t* element_index,
                                     const Real* grad_out, Real* grad_query, Real* grad_key, Real* grad_value,
                                     Real* grad_space, Real* grad_element, const gevit_shape* shape) {
    return without_exceptions(shape, [&](const Problem& problem) {
        const Inputs inputs{query, key, value, space, element, offset_index, element_index};
        const Gradients gradients{grad_out, grad_query, grad_key, grad_value};
        const size_t spaces = size_t(problem.space_rows) * problem.space_channels;
        const size_t elements = size_t(problem.element_rows) * problem.element_channels, stride = spaces + elements;
        const int64_t groups = groups_of(problem.tasks, stride);
        std::vector<Real> partial(groups * stride);
        const int code = groups == 0 ? int(GEVIT_OK) : in_parallel(problem, inputs, true, groups,
                                                                   [&](auto& worker, int64_t group) {
            std::fill_n(worker.space_table_gradient, spaces, Vec{});
            std::fill_n(worker.element_table_gradient, elements, Vec{});
            const int64_t end = problem.tasks * (group + 1) / groups;
            for (int64_t task = problem.tasks * group / groups; task < end; ++task)
                if (shape->dropout > 0) worker.template backward<true>(task, gradients);
                else worker.template backward<false>(task, gradients);
            Real* to = partial.data() + group * stride;
            for (size_t i = 0; i < spaces; ++i) to[i] = sum(worker.space_table_gradient[i]);
            for (size_t i = 0; i < elements; ++i) to[spaces + i] = sum(worker.element_table_gradient[i]);
        });
        if (code == GEVIT_OK) {
            sum_groups(partial, 0, spaces, stride, grad_space);
            sum_groups(partial, spaces, elements, stride, grad_element);
        }
        return code;
    });
}
