//! Any device that libibverbs knows, by loading libibverbs.so.1 at run time: the program needs no
//! RDMA packages where it uses the software RNIC.
//!
//! Layouts are those of `verbs/abi_defs`, which tests compare with the C headers. Symbols are
//! looked up in the global scope, so that a preloaded library takes part.

use super::{
    Completion, CompletionKind, Completions, Device, DeviceError, Endpoint, Pair, PairSettings,
    Path, Registration, SharedReceives, Transport, Write,
};
use crate::memory::Memory;
use longhaul_abi_defs::{
    __be32, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS, IBV_QP_AV,
    IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY,
    IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_INIT, IBV_QPS_RTR,
    IBV_QPS_RTS, IBV_QPT_RC, IBV_QPT_UC, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WC_RDMA_WRITE,
    IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, IBV_WR_RDMA_WRITE_WITH_IMM, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_device, ibv_gid, ibv_mr, ibv_mtu, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_send_wr_rdma, ibv_sge, ibv_srq,
    ibv_srq_init_attr, ibv_wc,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Work requests of one call to the device.
const LIST: usize = 64;
/// The port that is used.
const PORT: u8 = 1;

/// Loads the library into the global scope.
fn load_library() -> Result<(), DeviceError> {
    let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
    // SAFETY: a C string; the library's constructors expect nothing.
    let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), flags) };
    if library.is_null() {
        let cause = "it is not installed (Debian: libibverbs1)";
        return Err(DeviceError::new("load libibverbs.so.1", cause));
    }
    Ok(())
}

macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs.
        #[derive(Clone, Copy)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn load() -> Result<Self, DeviceError> {
                load_library()?;
                Ok(Functions { $($name: {
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: a C string.
                    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr().cast()) };
                    if symbol.is_null() {
                        let missing = concat!("it has no ", stringify!($name));
                        return Err(DeviceError::new("load libibverbs.so.1", missing));
                    }
                    type Signature = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                    // SAFETY: the library's headers declare this signature.
                    unsafe { std::mem::transmute::<*mut c_void, Signature>(symbol) }
                },)* })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device);
    ibv_get_device_name: fn(*mut ibv_device) -> *const c_char;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq:
        fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
    ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
}

/// The last operating system error, as a device error.
fn failed(action: &'static str) -> DeviceError {
    DeviceError::new(action, std::io::Error::last_os_error())
}

fn succeeded(action: &'static str, errno: c_int) -> Result<(), DeviceError> {
    match errno {
        0 => Ok(()),
        errno => {
            let error = std::io::Error::from_raw_os_error(errno.abs());
            Err(DeviceError::new(action, error))
        }
    }
}

/// An open context and a protection domain, which all objects hold.
struct Domain {
    functions: Functions,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    gid_index: u8,
}

// SAFETY: verbs objects may be used from any thread, concurrently (ibv_open_device(3), and the
// locks that the verbs specification requires of providers).
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: both were created, and nothing uses them any more: all objects hold the domain.
        unsafe {
            (self.functions.ibv_dealloc_pd)(self.pd);
            (self.functions.ibv_close_device)(self.context);
        }
    }
}

/// A device of libibverbs.
pub struct Ibverbs {
    domain: Arc<Domain>,
    name: String,
    address: IpAddr,
    path_mtu: u32,
    psn: AtomicU32,
}

impl Ibverbs {
    /// Opens the device called `name`.
    ///
    /// # Errors
    /// If libibverbs is not installed, has no such device, or its port has no RoCEv2 address.
    pub fn open(name: &str) -> Result<Self, DeviceError> {
        let functions = Functions::load()?;
        let context = open_context(&functions, name)?;
        // SAFETY: the context is open.
        let pd = unsafe { (functions.ibv_alloc_pd)(context) };
        if pd.is_null() {
            let error = failed("allocate a protection domain");
            // SAFETY: open, and not used again.
            unsafe { (functions.ibv_close_device)(context) };
            return Err(error);
        }
        let mut domain = Domain { functions, context, pd, gid_index: 0 };
        let mut port = ibv_port_attr::zeroed();
        // SAFETY: an open context, and space for the attributes.
        let queried = unsafe { (functions.ibv_query_port)(context, PORT, &raw mut port) };
        succeeded("query the port", queried)?;
        let (index, address) = find_address(&domain, name, port.gid_tbl_len)?;
        domain.gid_index = index;
        let path_mtu = 128_u32 << port.active_mtu.0.clamp(1, 5);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let psn = AtomicU32::new(now.subsec_nanos() ^ std::process::id().rotate_left(12));
        Ok(Ibverbs { domain: Arc::new(domain), name: name.into(), address, path_mtu, psn })
    }
}

fn open_context(functions: &Functions, name: &str) -> Result<*mut ibv_context, DeviceError> {
    let wanted = CString::new(name).map_err(|_| DeviceError::new("open a device", "its name"))?;
    let mut count = 0;
    // SAFETY: space for a number.
    let list = unsafe { (functions.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Err(failed("list the devices"));
    }
    let mut names = Vec::new();
    let mut context = null_mut();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` devices, whose names are C strings.
        let (device, found) = unsafe {
            let device = *list.add(index);
            (device, CStr::from_ptr((functions.ibv_get_device_name)(device)))
        };
        names.push(found.to_string_lossy().into_owned());
        if found == wanted.as_c_str() {
            // SAFETY: a device of the list.
            context = unsafe { (functions.ibv_open_device)(device) };
        }
    }
    let opened = match context.is_null() {
        false => Ok(context),
        true if names.iter().any(|found| found == name) => Err(failed("open the device")),
        true => Err(DeviceError::new(
            "open the device",
            format!("there is no {name}; libibverbs has: {}", names.join(", ")),
        )),
    };
    // SAFETY: the list, which is not used again.
    unsafe { (functions.ibv_free_device_list)(list) };
    opened
}

/// The first RoCEv2 GID that is an IP address: IPv4-mapped ones first.
fn find_address(domain: &Domain, name: &str, count: c_int) -> Result<(u8, IpAddr), DeviceError> {
    let mut found: Option<(u8, IpAddr)> = None;
    for index in 0..count.clamp(0, 255) {
        let mut gid = ibv_gid::zeroed();
        // SAFETY: an open context, and space for a GID.
        let queried =
            unsafe { (domain.functions.ibv_query_gid)(domain.context, PORT, index, &raw mut gid) };
        // SAFETY: any bytes are a raw GID.
        let raw = unsafe { gid.raw };
        let types = format!("/sys/class/infiniband/{name}/ports/{PORT}/gid_attrs/types/{index}");
        let is_v2 = std::fs::read_to_string(types).map_or(true, |text| text.contains("v2"));
        if queried != 0 || raw == [0; 16] || !is_v2 {
            continue;
        }
        let address = Ipv6Addr::from(raw).to_canonical();
        let is_better = found.is_none_or(|(_, before)| before.is_ipv6() && address.is_ipv4());
        if is_better {
            found = Some((index as u8, address));
        }
    }
    found.ok_or_else(|| DeviceError::new("use the device", "its port 1 has no RoCEv2 address"))
}

/// Registered memory.
pub struct Region {
    domain: Arc<Domain>,
    mr: *mut ibv_mr,
    address: u64,
    memory: Option<Arc<Memory>>,
}

// SAFETY: as for [`Domain`]; the region's members do not change.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered, and not used again.
        if unsafe { (self.domain.functions.ibv_dereg_mr)(self.mr) } != 0 {
            // The device may still write there.
            std::mem::forget(self.memory.take());
        }
    }
}

impl Registration for Region {
    fn address(&self) -> u64 {
        self.address
    }

    fn rkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr).rkey }
    }
}

/// A completion queue with its event channel.
pub struct Queue {
    domain: Arc<Domain>,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
}

// SAFETY: as for [`Domain`].
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// Destroys the queue when its last user is gone.
impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: both exist; queue pairs hold the queue, so that none uses it any more.
        unsafe {
            (self.domain.functions.ibv_destroy_cq)(self.cq);
            (self.domain.functions.ibv_destroy_comp_channel)(self.channel);
        }
    }
}

fn completion(wc: &ibv_wc) -> Completion {
    // SAFETY: a completion with immediate data has it, and any bytes are a number.
    let immediate = || unsafe { wc.imm.imm_data }.memory().to_ne_bytes();
    let kind = if wc.status != IBV_WC_SUCCESS {
        CompletionKind::Failed { status: wc.status.0 }
    } else if wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
        CompletionKind::Arrived { immediate: immediate(), bytes: wc.byte_len }
    } else if wc.opcode == IBV_WC_RDMA_WRITE {
        CompletionKind::Sent { tag: wc.wr_id }
    } else {
        CompletionKind::Foreign
    };
    Completion { qpn: wc.qp_num, kind }
}

impl Completions for Arc<Queue> {
    fn poll(&self, max: usize, found: &mut Vec<Completion>) -> Result<(), DeviceError> {
        let missing = || DeviceError::new("poll", "the device has no poll_cq");
        // SAFETY: the context is open.
        let poll_cq = unsafe { (*self.domain.context).ops.poll_cq }.ok_or_else(missing)?;
        let mut batch = [ibv_wc::zeroed(); LIST];
        let mut left = max;
        while left > 0 {
            let room = left.min(LIST);
            // SAFETY: space for `room` completions.
            let count = unsafe { poll_cq(self.cq, room as c_int, batch.as_mut_ptr()) };
            let Ok(count) = usize::try_from(count) else {
                return Err(DeviceError::new("poll", "the completion queue has failed"));
            };
            found.extend(batch.iter().take(count).map(completion));
            if count < room {
                break;
            }
            left -= count;
        }
        Ok(())
    }

    fn arm(&self, solicited_only: bool) -> Result<(), DeviceError> {
        let missing = || DeviceError::new("request an event", "the device has no req_notify_cq");
        // SAFETY: the context is open.
        let notify = unsafe { (*self.domain.context).ops.req_notify_cq }.ok_or_else(missing)?;
        // SAFETY: the queue exists.
        succeeded("request an event", unsafe { notify(self.cq, solicited_only.into()) })
    }

    fn wait(&self, limit: Duration) -> Result<(), DeviceError> {
        // SAFETY: the channel exists, and owns its descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw((*self.channel).fd) };
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let limit =
            Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        // An interrupted wait is one that ends early.
        if !poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0) {
            return Ok(());
        }
        let (mut cq, mut cookie) = (null_mut(), null_mut());
        // SAFETY: the descriptor is readable, so the call does not block; space for both.
        let got = unsafe {
            (self.domain.functions.ibv_get_cq_event)(self.channel, &raw mut cq, &raw mut cookie)
        };
        if got != 0 {
            return Err(failed("wait for an event"));
        }
        // SAFETY: the event was just taken.
        unsafe { (self.domain.functions.ibv_ack_cq_events)(cq, 1) };
        Ok(())
    }
}

/// A list of receives without memory; posted by `post` in portions.
fn post_empty(
    count: u32,
    mut post: impl FnMut(*mut ibv_recv_wr) -> c_int,
) -> Result<(), DeviceError> {
    let mut list = [ibv_recv_wr::zeroed(); LIST];
    let mut left = count as usize;
    while left > 0 {
        let portion = left.min(LIST);
        for index in 0..portion {
            list[index].next = match index + 1 < portion {
                true => &raw mut list[index + 1],
                false => null_mut(),
            };
        }
        succeeded("post receives", post(list.as_mut_ptr()))?;
        left -= portion;
    }
    Ok(())
}

/// A shared receive queue.
pub struct Shared {
    domain: Arc<Domain>,
    srq: *mut ibv_srq,
}

// SAFETY: as for [`Domain`].
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: it exists; queue pairs hold it, so that none uses it any more.
        unsafe { (self.domain.functions.ibv_destroy_srq)(self.srq) };
    }
}

impl SharedReceives for Arc<Shared> {
    fn post(&self, count: u32) -> Result<(), DeviceError> {
        let missing = || DeviceError::new("post receives", "the device has no shared queues");
        // SAFETY: the context is open.
        let post = unsafe { (*self.domain.context).ops.post_srq_recv }.ok_or_else(missing)?;
        let mut bad = null_mut();
        // SAFETY: the queue exists; the list lives during the call.
        post_empty(count, |list| unsafe { post(self.srq, list, &raw mut bad) })
    }
}

/// A queue pair.
pub struct QueuePair {
    domain: Arc<Domain>,
    qp: *mut ibv_qp,
    transport: Transport,
    _completions: Arc<Queue>,
    _shared: Option<Arc<Shared>>,
}

// SAFETY: as for [`Domain`].
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: it exists, and is not used again.
        unsafe { (self.domain.functions.ibv_destroy_qp)(self.qp) };
    }
}

impl QueuePair {
    fn modify(&self, attributes: &mut ibv_qp_attr, mask: c_uint) -> Result<(), DeviceError> {
        // SAFETY: the queue pair exists; the attributes of the mask are set.
        let modified =
            unsafe { (self.domain.functions.ibv_modify_qp)(self.qp, attributes, mask as c_int) };
        succeeded("modify a queue pair", modified)
    }

    fn initialize(&self) -> Result<(), DeviceError> {
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = IBV_QPS_INIT;
        attributes.port_num = PORT;
        attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask)
    }
}

impl Pair for QueuePair {
    type Registration = Region;

    fn qpn(&self) -> u32 {
        // SAFETY: the queue pair exists; its number does not change.
        unsafe { (*self.qp).qp_num }
    }

    fn connect(&self, psn: u32, peer: Endpoint, path: Path) -> Result<(), DeviceError> {
        let is_reliable = self.transport == Transport::Rc;
        let mut attributes = ibv_qp_attr::zeroed();
        attributes.qp_state = IBV_QPS_RTR;
        attributes.path_mtu = ibv_mtu((path.mtu / 128).checked_ilog2().unwrap_or(1));
        attributes.dest_qp_num = peer.qpn;
        attributes.rq_psn = peer.psn;
        attributes.max_dest_rd_atomic = 1;
        attributes.min_rnr_timer = 12;
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = PORT;
        attributes.ah_attr.grh.sgid_index = self.domain.gid_index;
        attributes.ah_attr.grh.hop_limit = 64;
        attributes.ah_attr.grh.dgid.raw = match path.address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let mut mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        if is_reliable {
            mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        }
        self.modify(&mut attributes, mask)?;
        attributes.qp_state = IBV_QPS_RTS;
        attributes.sq_psn = psn;
        attributes.timeout = 14;
        attributes.retry_cnt = 7;
        attributes.rnr_retry = 7;
        attributes.max_rd_atomic = 1;
        let mut mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
        if is_reliable {
            mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.modify(&mut attributes, mask)
    }

    fn post_receives(&self, count: u32) -> Result<(), DeviceError> {
        let missing = || DeviceError::new("post receives", "the device has no post_recv");
        // SAFETY: the context is open.
        let post = unsafe { (*self.domain.context).ops.post_recv }.ok_or_else(missing)?;
        let mut bad = null_mut();
        // SAFETY: the queue pair exists; the list lives during the call.
        post_empty(count, |list| unsafe { post(self.qp, list, &raw mut bad) })
    }

    fn post_writes(&self, memory: &Region, writes: &[Write]) -> Result<(), DeviceError> {
        let missing = || DeviceError::new("post a WRITE", "the device has no post_send");
        // SAFETY: the context is open.
        let post = unsafe { (*self.domain.context).ops.post_send }.ok_or_else(missing)?;
        // SAFETY: the region is registered.
        let lkey = unsafe { (*memory.mr).lkey };
        let mut pieces = [ibv_sge::zeroed(); LIST];
        let mut list = [ibv_send_wr::zeroed(); LIST];
        for portion in writes.chunks(LIST) {
            for (index, write) in portion.iter().enumerate() {
                pieces[index] = ibv_sge {
                    addr: memory.address + write.offset as u64,
                    length: write.bytes,
                    lkey,
                };
                let is_last = index + 1 == portion.len();
                let next = if is_last { null_mut() } else { &raw mut list[index + 1] };
                let request = &mut list[index];
                *request = ibv_send_wr::zeroed();
                request.wr_id = write.tag;
                request.next = next;
                request.sg_list = &raw mut pieces[index];
                request.num_sge = 1;
                request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                request.send_flags = if write.signaled { IBV_SEND_SIGNALED } else { 0 }
                    | if write.solicited { IBV_SEND_SOLICITED } else { 0 };
                request.imm.imm_data = __be32::from_memory(u32::from_ne_bytes(write.immediate));
                request.wr.rdma =
                    ibv_send_wr_rdma { remote_addr: write.remote_address, rkey: write.rkey };
            }
            let mut bad = null_mut();
            // SAFETY: the queue pair exists; list and pieces live during the call.
            let posted = unsafe { post(self.qp, list.as_mut_ptr(), &raw mut bad) };
            succeeded("post a WRITE", posted)?;
        }
        Ok(())
    }
}

impl Device for Ibverbs {
    type Registration = Region;
    type Completions = Arc<Queue>;
    type SharedReceives = Arc<Shared>;
    type Pair = QueuePair;

    fn address(&self) -> IpAddr {
        self.address
    }

    fn mac(&self) -> Option<[u8; 6]> {
        let read = |path: String| std::fs::read_to_string(path).ok();
        let (name, index) = (&self.name, self.domain.gid_index);
        let netdevs = format!("/sys/class/infiniband/{name}/ports/{PORT}/gid_attrs/ndevs");
        let netdev = read(format!("{netdevs}/{index}"))?;
        let text = read(format!("/sys/class/net/{}/address", netdev.trim()))?;
        let mut mac = [0; 6];
        let mut parts = text.trim().split(':');
        for byte in &mut mac {
            *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
        }
        parts.next().is_none().then_some(mac)
    }

    fn path_mtu(&self) -> u32 {
        self.path_mtu
    }

    fn register(&self, memory: &Arc<Memory>) -> Result<Region, DeviceError> {
        let domain = Arc::clone(&self.domain);
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let at = memory.as_ptr();
        // SAFETY: the memory is mapped until after the region is deregistered.
        let mr = unsafe {
            (domain.functions.ibv_reg_mr)(
                domain.pd,
                at.as_ptr().cast(),
                memory.len(),
                access as c_int,
            )
        };
        if mr.is_null() {
            return Err(failed("register memory"));
        }
        let address = at.as_ptr() as u64;
        Ok(Region { domain, mr, address, memory: Some(Arc::clone(memory)) })
    }

    fn completions(&self, depth: u32) -> Result<Self::Completions, DeviceError> {
        let domain = Arc::clone(&self.domain);
        // SAFETY: the context is open.
        let channel = unsafe { (domain.functions.ibv_create_comp_channel)(domain.context) };
        if channel.is_null() {
            return Err(failed("create an event channel"));
        }
        // SAFETY: as above, and the channel exists.
        let cq = unsafe {
            (domain.functions.ibv_create_cq)(
                domain.context,
                c_int::try_from(depth).unwrap_or(c_int::MAX),
                null_mut(),
                channel,
                0,
            )
        };
        if cq.is_null() {
            let error = failed("create a completion queue");
            // SAFETY: it exists, and nothing uses it.
            unsafe { (domain.functions.ibv_destroy_comp_channel)(channel) };
            return Err(error);
        }
        Ok(Arc::new(Queue { domain, cq, channel }))
    }

    fn shared_receives(&self, depth: u32) -> Result<Self::SharedReceives, DeviceError> {
        let domain = Arc::clone(&self.domain);
        let mut init = ibv_srq_init_attr::zeroed();
        init.attr.max_wr = depth;
        init.attr.max_sge = 1;
        // SAFETY: the domain exists, and the attributes are set.
        let srq = unsafe { (domain.functions.ibv_create_srq)(domain.pd, &raw mut init) };
        if srq.is_null() {
            return Err(failed("create a shared receive queue"));
        }
        Ok(Arc::new(Shared { domain, srq }))
    }

    fn pair(
        &self,
        completions: &Self::Completions,
        settings: &PairSettings,
        shared: Option<&Self::SharedReceives>,
    ) -> Result<QueuePair, DeviceError> {
        let domain = Arc::clone(&self.domain);
        let mut init = ibv_qp_init_attr::zeroed();
        init.send_cq = completions.cq;
        init.recv_cq = completions.cq;
        init.srq = shared.map_or(null_mut(), |shared| shared.srq);
        init.cap.max_send_wr = settings.send_depth;
        init.cap.max_recv_wr = if shared.is_some() { 0 } else { settings.receive_depth };
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        init.qp_type = match settings.transport {
            Transport::Uc => IBV_QPT_UC,
            Transport::Rc => IBV_QPT_RC,
        };
        // SAFETY: domain and queues exist, and the attributes are set.
        let qp = unsafe { (domain.functions.ibv_create_qp)(domain.pd, &raw mut init) };
        if qp.is_null() {
            return Err(failed("create a queue pair"));
        }
        let pair = QueuePair {
            domain,
            qp,
            transport: settings.transport,
            _completions: Arc::clone(completions),
            _shared: shared.cloned(),
        };
        pair.initialize()?;
        Ok(pair)
    }

    fn fresh_psn(&self) -> u32 {
        self.psn.fetch_add(0x0001_35c7, Ordering::Relaxed) & 0x00ff_ffff
    }

    fn out_of_buffer(&self) -> Option<u64> {
        let mut path = PathBuf::from("/sys/class/infiniband");
        path.extend([&self.name, "ports", "1", "hw_counters", "out_of_buffer"]);
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }
}
