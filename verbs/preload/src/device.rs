//! The device and its contexts: listing, opening, and attributes.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;

use longhaul_abi_defs::{
    __be16, __be64, _compat_ibv_port_attr, IBV_ATOMIC_HCA, IBV_DEVICE_BAD_PKEY_CNTR,
    IBV_DEVICE_BAD_QKEY_CNTR, IBV_DEVICE_CURR_QP_STATE_MOD, IBV_DEVICE_PORT_ACTIVE_EVENT,
    IBV_DEVICE_RC_RNR_NAK_GEN, IBV_DEVICE_SRQ_RESIZE, IBV_DEVICE_SYS_IMAGE_GUID,
    IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_MTU_4096, IBV_PORT_ACTIVE, IBV_PORT_DOWN,
    IBV_QPF_GRH_REQUIRED, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, VERBS_ABI_IS_EXTENDED, ibv_context,
    ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_mtu,
    ibv_packet_pacing_caps, ibv_port_attr, ibv_query_device_ex_input, verbs_context,
};
use longhaul_port::LinkState;
use longhaul_rdma::sysfs::{
    self, PKEY, PORT_CAPABILITIES, interface_index, lid_of, width_and_speed,
};
use longhaul_rdma::{Attach, Engine, EventQueue};
use longhaul_rnic::{Counter, MESSAGE_MAX, SGE_MAX};

use crate::address::{address_at, gid_of};
use crate::guard::{guarded, null, returned, set_errno};
use crate::object::{self, Kind};
use crate::process::{self, Device, c_text};
use crate::{completion, domain, extended_cq, memory, posting, queue_pair, shared_queue};

/// The only port.
pub(crate) const PORT: u8 = 1;
/// Maximum work requests per queue of a queue pair: librdmacm keeps 16 bits of the number.
pub(crate) const QUEUE_DEPTH_MAX: u32 = u16::MAX as u32;
/// Completion vectors. Programs may spread their queues over them; each queue has its own
/// descriptor regardless.
pub(crate) const COMPLETION_VECTORS: u32 = 4;
/// An unassigned vendor id: IEEE assigns none whose first byte has the second bit set. Programs
/// identify vendors by it, and treat an unknown one like the kernel's software devices.
const VENDOR_ID: u32 = 0x02_6c_68;
const VENDOR_PART_ID: u32 = 1;

/// The library's part of an open device.
pub(crate) struct Context {
    pub(crate) engine: Arc<Engine>,
    pub(crate) events: Arc<EventQueue<longhaul_rdma::AsyncEvent>>,
    /// The connection manager's context, which a program cannot close.
    shared: bool,
    /// The descriptor that programs duplicate to share a device with other processes, which fail to
    /// import it.
    _commands: Option<File>,
}

impl Kind for Context {
    type Public = verbs_context;
    const MARK: u64 = 0x6c68_636f_6e74_6578;
}

/// The library's part of the context that a program's pointer stands for.
///
/// # Safety
/// As [`object::resolve`].
pub(crate) unsafe fn context<'a>(context: *mut ibv_context) -> Option<&'a Context> {
    if context.is_null() {
        return None;
    }
    let outer =
        context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
    // SAFETY: passed on to the caller; contexts are always handed out inside a verbs_context.
    unsafe { object::resolve::<Context>(outer) }
}

/// The library's part of a device.
unsafe fn device<'a>(device: *mut ibv_device) -> Option<&'a Device> {
    // SAFETY: passed on to the caller.
    unsafe { object::resolve::<Device>(device) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    guarded(ptr::null_mut(), || {
        let device = process::device();
        // SAFETY: calloc of two pointers; the program frees the list with ibv_free_device_list or,
        // as with older libraries, with free.
        unsafe {
            let list = libc::calloc(2, size_of::<*mut ibv_device>()).cast::<*mut ibv_device>();
            if list.is_null() {
                return null(libc::ENOMEM);
            }
            *list = device;
            if !count.is_null() {
                *count = c_int::from(!device.is_null());
            }
            list
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the list came from calloc in ibv_get_device_list.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(dev: *mut ibv_device) -> *const c_char {
    if dev.is_null() {
        return ptr::null();
    }
    // SAFETY: a device, whose name is its own.
    unsafe { (&raw const (*dev).name).cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(dev: *mut ibv_device) -> __be64 {
    // SAFETY: the program's pointer, checked as far as possible.
    unsafe { device(dev) }.map_or(__be64::new(0), |device| __be64::new(device.attach.guid()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(_dev: *mut ibv_device) -> c_int {
    // Unknown to the kernel.
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(dev: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the program's pointer, checked as far as possible.
    guarded(ptr::null_mut(), || match unsafe { device(dev) } {
        Some(device) => open(dev, device, false).unwrap_or_else(null),
        None => null(libc::ENODEV),
    })
}

/// The connection manager's context for all its identifiers; it is never closed.
pub(crate) fn shared_context() -> Result<*mut ibv_context, c_int> {
    struct Shared(*mut ibv_context, u32);
    // SAFETY: the context is never destroyed, and its public part is not written to after creation.
    unsafe impl Send for Shared {}
    static SHARED: std::sync::Mutex<Option<Shared>> = std::sync::Mutex::new(None);
    let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // After a fork the parent's context cannot be used.
    if let Some(shared) = &*shared
        && shared.1 == std::process::id()
    {
        return Ok(shared.0);
    }
    let dev = process::device();
    // SAFETY: null or this library's device.
    let device = unsafe { device(dev) }.ok_or(libc::ENODEV)?;
    let context = open(dev, device, true)?;
    *shared = Some(Shared(context, std::process::id()));
    Ok(context)
}

fn open(dev: *mut ibv_device, device: &Device, shared: bool) -> Result<*mut ibv_context, c_int> {
    let engine = device.engine().map_err(|error| error.errno())?;
    let events = EventQueue::new().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    let mut public = verbs_context {
        query_port: Some(query_port),
        query_device_ex: Some(query_device_ex),
        create_cq_ex: Some(extended_cq::create_cq_ex),
        create_qp_ex: Some(queue_pair::create_qp_ex),
        modify_qp_rate_limit: Some(queue_pair::modify_qp_rate_limit),
        query_rt_values: Some(extended_cq::query_rt_values),
        alloc_td: Some(domain::alloc_td),
        dealloc_td: Some(domain::dealloc_td),
        alloc_parent_domain: Some(domain::alloc_parent_domain),
        sz: size_of::<verbs_context>(),
        ..verbs_context::zeroed()
    };
    public.context.device = dev;
    let commands = File::open("/dev/null").ok();
    public.context.cmd_fd = commands.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    public.context.async_fd = events.fd();
    public.context.num_comp_vectors = COMPLETION_VECTORS as c_int;
    public.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    let ops = &mut public.context.ops;
    ops._compat_query_device = Some(ibv_query_device);
    ops._compat_query_port = Some(ibv_query_port);
    ops.alloc_mw = Some(memory::alloc_mw);
    ops.bind_mw = Some(memory::bind_mw);
    ops.dealloc_mw = Some(memory::dealloc_mw);
    ops.poll_cq = Some(completion::poll_cq);
    ops.req_notify_cq = Some(completion::req_notify_cq);
    ops.post_srq_recv = Some(shared_queue::post_srq_recv);
    ops.post_send = Some(posting::post_send);
    ops.post_recv = Some(posting::post_recv);
    let events = Arc::new(events);
    engine.watch_port(&events).map_err(|error| error.errno())?;
    let outer = object::create(public, Context { engine, events, shared, _commands: commands });
    // SAFETY: just created.
    Ok(unsafe { &raw mut (*outer).context })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(ctx: *mut ibv_context) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { context(ctx) }) else { return minus_one_invalid() };
        if !ours.shared {
            let outer =
                ctx.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
            // SAFETY: a live context, which the program gives up.
            unsafe { object::destroy::<Context>(outer) };
        }
        0
    })
}

fn minus_one_invalid() -> c_int {
    set_errno(libc::EINVAL);
    -1
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    ctx: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the program's pointers, checked as far as possible.
    guarded(libc::EIO, || match unsafe { context(ctx) } {
        Some(ours) if !attr.is_null() => {
            // SAFETY: the caller provides space for the structure.
            unsafe { attr.write(device_attributes(&ours.engine)) };
            0
        }
        _ => returned(libc::EINVAL),
    })
}

unsafe extern "C" fn query_device_ex(
    ctx: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { context(ctx) }) else { return returned(libc::EINVAL) };
        // SAFETY: null, or the program's input.
        let asks_more = unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0);
        if attr.is_null() || asks_more || size < offset_of!(ibv_device_attr_ex, odp_caps) {
            return returned(libc::EINVAL);
        }
        let mut filled = ibv_device_attr_ex::zeroed();
        filled.orig_attr = device_attributes(&ours.engine);
        filled.completion_timestamp_mask = extended_cq::TIMESTAMP_MASK;
        filled.hca_core_clock = extended_cq::CLOCK_KHZ;
        filled.device_cap_flags_ex = filled.orig_attr.device_cap_flags.into();
        filled.packet_pacing_caps = ibv_packet_pacing_caps {
            qp_rate_limit_min: 1,
            qp_rate_limit_max: u32::MAX,
            supported_qpts: 1 << IBV_QPT_RC.0 | 1 << IBV_QPT_UC.0 | 1 << IBV_QPT_UD.0,
        };
        filled.phys_port_cnt_ex = 1;
        let known = size.min(size_of::<ibv_device_attr_ex>());
        // SAFETY: the caller provides space for `size` bytes, of which no more than the structure
        // is written.
        unsafe {
            ptr::copy_nonoverlapping((&raw const filled).cast::<u8>(), attr.cast::<u8>(), known)
        };
        0
    })
}

fn device_attributes(engine: &Engine) -> ibv_device_attr {
    let attach = engine.attach();
    let guid = __be64::new(attach.guid());
    let count = |limit: u32| c_int::try_from(limit).unwrap_or(c_int::MAX);
    let reads = attach.read_depth.into();
    let limited = engine.with_quietly(|rnic| {
        let limits = rnic.config();
        ibv_device_attr {
            max_qp: count(limits.qpn_count),
            max_qp_init_rd_atom: limits.rd_atomic_initiated_max.into(),
            max_qp_wr: count(limits.wq_depth_max.min(QUEUE_DEPTH_MAX)),
            max_cq: count(limits.cq_count_max),
            max_cqe: count(limits.cq_depth_max),
            max_mr: count(limits.mr_count_max),
            max_pd: count(limits.pd_count_max),
            max_res_rd_atom: count(limits.qpn_count.saturating_mul(attach.read_depth.into())),
            max_mcast_grp: count(limits.multicast_group_max),
            max_mcast_qp_attach: count(limits.multicast_qp_max),
            max_total_mcast_qp_attach: count(
                limits.multicast_group_max.saturating_mul(limits.multicast_qp_max),
            ),
            max_ah: count(limits.ah_count_max),
            max_srq: count(limits.srq_count_max),
            max_srq_wr: count(limits.wq_depth_max),
            max_srq_sge: SGE_MAX as c_int,
            ..ibv_device_attr::zeroed()
        }
    });
    ibv_device_attr {
        fw_ver: c_text(env!("CARGO_PKG_VERSION")),
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id: VENDOR_ID,
        vendor_part_id: VENDOR_PART_ID,
        hw_ver: 1,
        device_cap_flags: IBV_DEVICE_CURR_QP_STATE_MOD
            | IBV_DEVICE_BAD_PKEY_CNTR
            | IBV_DEVICE_BAD_QKEY_CNTR
            | IBV_DEVICE_PORT_ACTIVE_EVENT
            | IBV_DEVICE_RC_RNR_NAK_GEN
            | IBV_DEVICE_SRQ_RESIZE
            | IBV_DEVICE_SYS_IMAGE_GUID,
        max_sge: SGE_MAX as c_int,
        max_sge_rd: SGE_MAX as c_int,
        max_qp_rd_atom: reads,
        atomic_cap: IBV_ATOMIC_HCA,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        // After a fork the parent's device cannot be used, and has no limits to report.
        ..limited
            .unwrap_or(ibv_device_attr { max_qp_init_rd_atom: reads, ..ibv_device_attr::zeroed() })
    }
}

unsafe extern "C" fn query_port(
    ctx: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    guarded(libc::EIO, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { context(ctx) }) else { return returned(libc::EINVAL) };
        if port != PORT || attr.is_null() {
            return returned(libc::EINVAL);
        }
        let filled = port_attributes(&ours.engine);
        let known = size.min(size_of::<ibv_port_attr>());
        // SAFETY: the caller provides space for `size` bytes, of which no more than the structure
        // is written.
        unsafe {
            ptr::copy_nonoverlapping((&raw const filled).cast::<u8>(), attr.cast::<u8>(), known)
        };
        0
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    ctx: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the older structure is the beginning of the newer one; no more than its size is
    // written.
    unsafe { query_port(ctx, port, attr.cast(), size_of::<_compat_ibv_port_attr>()) }
}

/// The verbs code of the maximum path MTU.
pub(crate) fn mtu_code(attach: &Attach) -> u8 {
    attach.path_mtu.ilog2() as u8 - 7
}

fn port_attributes(engine: &Engine) -> ibv_port_attr {
    let up = engine.link() == LinkState::Up;
    let violations = engine.with_quietly(|rnic| {
        let count = |counter| u32::try_from(rnic.counters().get(counter)).unwrap_or(u32::MAX);
        (count(Counter::PKey), count(Counter::QKey))
    });
    let (bad_pkey_cntr, qkey_viol_cntr) = violations.unwrap_or((0, 0));
    let (active_width, active_speed) =
        width_and_speed(engine.attach().rate.map(|rate| rate.as_bps()));
    ibv_port_attr {
        state: if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
        max_mtu: IBV_MTU_4096,
        active_mtu: ibv_mtu(mtu_code(engine.attach()).into()),
        gid_tbl_len: engine.attach().gids().len() as c_int,
        port_cap_flags: PORT_CAPABILITIES,
        max_msg_sz: MESSAGE_MAX as u32,
        bad_pkey_cntr,
        qkey_viol_cntr,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width,
        active_speed,
        // 5: link up; 3: disabled.
        phys_state: if up { 5 } else { 3 },
        lid: lid_of(engine.attach()),
        link_layer: IBV_LINK_LAYER_ETHERNET,
        flags: IBV_QPF_GRH_REQUIRED,
        ..ibv_port_attr::zeroed()
    }
}

fn gid_at(ctx: *mut ibv_context, port: u32, index: c_int) -> Option<ibv_gid> {
    // SAFETY: the program's pointer, checked as far as possible.
    let ours = unsafe { context(ctx) }?;
    let index = u8::try_from(index).ok().filter(|_| port == u32::from(PORT))?;
    address_at(ours.engine.attach(), index).map(gid_of)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    ctx: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    guarded(-1, || match gid_at(ctx, port.into(), index) {
        Some(found) if !gid.is_null() => {
            // SAFETY: the caller provides space for a GID.
            unsafe { gid.write(found) };
            0
        }
        _ => minus_one_invalid(),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    ctx: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut c_uint,
) -> c_int {
    // This private function reports RoCEv2 by its number in sysfs.
    const ROCE_V2_IN_SYSFS: c_uint = 1;
    guarded(-1, || match gid_at(ctx, port.into(), index as c_int) {
        Some(_) if !kind.is_null() => {
            // SAFETY: the caller provides space for an enumerator.
            unsafe { kind.write(ROCE_V2_IN_SYSFS) };
            0
        }
        _ => minus_one_invalid(),
    })
}

fn gid_entry(ctx: *mut ibv_context, gid: ibv_gid, index: u32) -> ibv_gid_entry {
    // SAFETY: the program's pointer, checked as far as possible.
    let ours = unsafe { context(ctx) };
    ibv_gid_entry {
        gid,
        gid_index: index,
        port_num: PORT.into(),
        gid_type: IBV_GID_TYPE_ROCE_V2.0,
        ndev_ifindex: ours.and_then(|ours| interface_index(ours.engine.attach())).unwrap_or(0),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    ctx: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    guarded(libc::EIO, || {
        if flags != 0 || entry.is_null() {
            return returned(libc::EINVAL);
        }
        // The table has no gaps; the kernel has another errno for gaps.
        let Some(gid) = gid_at(ctx, port, c_int::try_from(index).unwrap_or(-1)) else {
            return returned(libc::EINVAL);
        };
        let filled = gid_entry(ctx, gid, index);
        let known = size.min(size_of::<ibv_gid_entry>());
        // SAFETY: the caller provides space for `size` bytes, of which no more than the structure
        // is written.
        unsafe {
            ptr::copy_nonoverlapping((&raw const filled).cast::<u8>(), entry.cast::<u8>(), known)
        };
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    ctx: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    guarded(-(libc::EIO as isize), || {
        if flags != 0 || entries.is_null() || size < size_of::<ibv_gid_entry>() {
            return -(libc::EINVAL as isize);
        }
        // SAFETY: the program's pointer, checked as far as possible.
        let Some(ours) = (unsafe { context(ctx) }) else { return -(libc::EINVAL as isize) };
        let gids = ours.engine.attach().gids();
        let count = gids.len();
        if max < count {
            return -(libc::EINVAL as isize);
        }
        for (index, gid) in gids.enumerate() {
            let entry = gid_entry(ctx, ibv_gid::from_bytes(gid), index as u32);
            // SAFETY: the caller provides space for `max` entries of `size` bytes each.
            unsafe { entries.byte_add(index * size).write(entry) };
        }
        count as isize
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    ctx: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut __be16,
) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        if unsafe { context(ctx) }.is_none() || port != PORT || index != 0 || pkey.is_null() {
            return minus_one_invalid();
        }
        // SAFETY: the caller provides space for a key.
        unsafe { pkey.write(__be16::new(PKEY)) };
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(ctx: *mut ibv_context, port: u8, pkey: __be16) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let known = unsafe { context(ctx) }.is_some() && port == PORT && pkey.get() == PKEY;
        if known { 0 } else { minus_one_invalid() }
    })
}

/// Contents of a file of the device in sysfs, for a process without a directory of them. `None`:
/// not a file of this device.
fn sysfs_text(attach: &Attach, file: &str) -> Option<String> {
    let mut files = sysfs::files(attach, LinkState::Up).into_iter();
    files.find_map(|(name, contents)| (name == file).then_some(contents))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    guarded(-1, || {
        if dir.is_null() || file.is_null() || buffer.is_null() {
            return minus_one_invalid();
        }
        // SAFETY: the caller gives two C strings.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = format!("{}/{}", dir.to_string_lossy(), file.to_string_lossy());
        let ours = || {
            let ours = path.strip_prefix(process::IBDEV_PATH)?.trim_start_matches('/');
            // SAFETY: null or this library's device.
            let device = unsafe { device(process::device()) }?;
            sysfs_text(&device.attach, ours)
        };
        let Some(contents) = std::fs::read_to_string(&path).ok().or_else(ours) else {
            set_errno(libc::ENOENT);
            return -1;
        };
        let bytes = contents.trim_end_matches('\n').as_bytes();
        let len = bytes.len().min(size);
        // SAFETY: the caller provides space for `size` bytes; the final 0 is written when there is
        // room.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>(), len);
            if len < size {
                buffer.add(len).write(0);
            }
        }
        len as c_int
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_is_fork_initialized() -> c_uint {
    // IBV_FORK_UNNEEDED: memory is not pinned.
    2
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_abi_defs::{IBV_PORT_CM_SUP, IBV_PORT_IP_BASED_GIDS};

    #[test]
    fn capabilities_have_the_numbers_of_the_headers() {
        assert_eq!(PORT_CAPABILITIES, IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS);
    }
}
