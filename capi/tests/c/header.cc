// The header in C++: its inline function, types and functions, with C linkage.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <wedjat.h>
#include <wedjat.h> // a second time, as by wedjat_dpdk.h

static int64_t handle(const wedjat_task *, uint8_t *, const wedjat_cpu *cpu, void *)
{
    wedjat_critical_begin(cpu);
    wedjat_critical_end(cpu);
    wedjat_yield_point(cpu);
    return -1;
}

int main()
{
    wedjat_sharing sharing = {sizeof sharing, 10000, 256 << 10, 64, 0};
    char detail[64];
    if (wedjat_worker_serve(nullptr, &sharing, handle, nullptr, detail, sizeof detail) != WEDJAT_ERROR_NULL)
        return 1;
    // A call that is not due only counts.
    uint32_t calls_left = 3;
    wedjat_cpu cpu = {&calls_left, nullptr};
    wedjat_yield_point(&cpu);
    return calls_left == 2 && std::strlen(wedjat_version()) > 0 ? 0 : 1;
}
