/* A program that is linked with neither libibverbs nor librdmacm, loads them at run time and looks their functions up
 * by name, like programs that must also run without them. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <rdma/rdma_cma.h>

typedef struct ibv_device **get_list(int *);
typedef const char *name_of(struct ibv_device *);

static void *own_function(void *library, const char *name)
{
    Dl_info found;
    void *function = dlsym(library, name);
    CHECK(function && !dlerror());
    CHECK(dladdr(function, &found) && strstr(found.dli_fname, "liblonghaul_preload.so"));
    return function;
}

static void finds_the_device(void *verbs)
{
    int count = 0;
    get_list *plain = (get_list *)own_function(verbs, "ibv_get_device_list");
    name_of *name = (name_of *)own_function(verbs, "ibv_get_device_name");
    struct ibv_device **list = plain(&count);
    CHECK(count == 1 && !strcmp(name(list[0]), "longhaul0"));
    CHECK(dlvsym(verbs, "ibv_get_device_list", "IBVERBS_1.1") == (void *)plain);
    CHECK(dlvsym(verbs, "ibv_create_comp_channel", "IBVERBS_1.0") == own_function(verbs, "ibv_create_comp_channel"));
    CHECK(dlvsym(verbs, "ibv_query_ece", "IBVERBS_1.10") == own_function(verbs, "ibv_query_ece"));
    own_function(verbs, "_ibv_query_gid_ex");
}

static void leaves_the_rest_alone(void *verbs)
{
    Dl_info found;
    /* The oldest programs have other structures. */
    void *old = dlvsym(verbs, "ibv_get_device_list", "IBVERBS_1.0");
    CHECK(old && dladdr(old, &found) && strstr(found.dli_fname, "libibverbs.so"));
    const char *(*text)(enum ibv_wc_status) = (const char *(*)(enum ibv_wc_status))dlsym(verbs, "ibv_wc_status_str");
    CHECK(text && !dlerror() && !strcmp(text(IBV_WC_SUCCESS), "success"));
    CHECK(!dlsym(verbs, "ibv_function_of_nobody") && dlerror());
    CHECK(!dlvsym(verbs, "ibv_get_device_list", "IBVERBS_9.9") && dlerror());
    CHECK(dlsym(RTLD_DEFAULT, "ibv_get_device_list") == dlsym(verbs, "ibv_get_device_list"));
    /* The next one after the program itself, not after the forwarding library. */
    CHECK(dlsym(RTLD_NEXT, "ibv_get_device_list") == dlsym(verbs, "ibv_get_device_list"));
    CHECK(dlsym(RTLD_NEXT, "dlsym") == dlsym(RTLD_DEFAULT, "dlsym"));
    CHECK(dlsym(RTLD_DEFAULT, "printf") == (void *)printf);
    CHECK(dlvsym(RTLD_DEFAULT, "malloc", "GLIBC_2.2.5") == (void *)malloc);
}

int main(void)
{
    void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    void *manager = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
    NEED(verbs && manager);
    finds_the_device(verbs);
    leaves_the_rest_alone(verbs);
    own_function(manager, "rdma_create_id");
    own_function(manager, "rdma_getaddrinfo");
    return verdict();
}
