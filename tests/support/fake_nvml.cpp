// A stand-in for libnvidia-ml.so.1: one GPU that draws FAKE_NVML_WATTS, whose counter of energy
// grows in steps of FAKE_NVML_STEP_MS (0: it has none).

#include <cstdlib>
#include <cstring>
#include <ctime>

namespace {

double number(const char* name, double otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atof(text) : otherwise;
}

int gpu;

}  // namespace

constexpr int SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6;

extern "C" {

int nvmlInitWithFlags(unsigned) { return SUCCESS; }
int nvmlInit_v2() { return SUCCESS; }
int nvmlShutdown() { return SUCCESS; }
const char* nvmlErrorString(int) { return "an error"; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
    *device = &gpu;
    return std::strcmp(bus, "0000:01:00.0") ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
    const double step = number("FAKE_NVML_STEP_MS", 20);
    if (step == 0) return NOT_SUPPORTED;
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double milliseconds = now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
    const double watts = number("FAKE_NVML_WATTS", 300);
    *millijoules = static_cast<long long>(milliseconds / step) * step * watts;
    return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
    *milliwatts = 700000;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
    *milliwatts = 1000 * number("FAKE_NVML_WATTS", 300);
    return SUCCESS;
}

}  // extern "C"
