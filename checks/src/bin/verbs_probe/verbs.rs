//! libibverbs, loaded at run time, with the calls that the scenarios need. Every object releases
//! itself, and must outlive the objects created from it.

use crate::Fault;
use longhaul_abi_defs::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;

/// The functions that are not inline in the header.
#[derive(Clone, Copy)]
pub struct Library {
    get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    get_device_name: unsafe extern "C" fn(*mut ibv_device) -> *const c_char,
    open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context,
    alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd,
    query_gid: unsafe extern "C" fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int,
    reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
    dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    create_cq: unsafe extern "C" fn(
        *mut ibv_context,
        c_int,
        *mut c_void,
        *mut ibv_comp_channel,
        c_int,
    ) -> *mut ibv_cq,
    destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp,
    modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    query_qp:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int,
    destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    create_ah: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah,
}

impl Library {
    /// Loads it, unless it is loaded.
    pub fn open() -> Result<Self, Fault> {
        // SAFETY: the name is a C string; every RDMA program runs the library's initialisers.
        let loaded = unsafe {
            libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL)
        };
        if loaded.is_null() {
            return Err("libibverbs.so.1 cannot be loaded".into());
        }
        // SAFETY: each type is that of the function in infiniband/verbs.h.
        unsafe {
            Ok(Library {
                get_device_list: symbol(c"ibv_get_device_list")?,
                get_device_name: symbol(c"ibv_get_device_name")?,
                open_device: symbol(c"ibv_open_device")?,
                alloc_pd: symbol(c"ibv_alloc_pd")?,
                query_gid: symbol(c"ibv_query_gid")?,
                reg_mr: symbol(c"ibv_reg_mr")?,
                dereg_mr: symbol(c"ibv_dereg_mr")?,
                create_cq: symbol(c"ibv_create_cq")?,
                destroy_cq: symbol(c"ibv_destroy_cq")?,
                create_qp: symbol(c"ibv_create_qp")?,
                modify_qp: symbol(c"ibv_modify_qp")?,
                query_qp: symbol(c"ibv_query_qp")?,
                destroy_qp: symbol(c"ibv_destroy_qp")?,
                create_ah: symbol(c"ibv_create_ah")?,
            })
        }
    }

    /// Opens the device called `name`, for as long as the program runs.
    pub fn device(&self, name: &str) -> Result<Device, Fault> {
        let mut count = 0;
        // SAFETY: `count` may be written; the list has that many entries, which live as long as the
        // list, and the list is never freed.
        let context = unsafe {
            let list = (self.get_device_list)(&raw mut count);
            let found = (0..usize::try_from(count)?).map(|at| *list.add(at)).find(|&device| {
                CStr::from_ptr((self.get_device_name)(device)).to_bytes() == name.as_bytes()
            });
            found.map_or(null_mut(), |device| (self.open_device)(device))
        };
        if context.is_null() {
            return Err(format!("no device {name} can be opened").into());
        }
        // SAFETY: the context is open.
        let pd = present("ibv_alloc_pd", unsafe { (self.alloc_pd)(context) })?;
        Ok(Device { library: *self, context, pd, name: name.to_owned() })
    }
}

/// The first function called `name` in any loaded library.
///
/// # Safety
/// `F` must be its type.
unsafe fn symbol<F: Copy>(name: &CStr) -> Result<F, Fault> {
    // SAFETY: the name is a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() {
        return Err(format!("libibverbs has no {}", name.to_string_lossy()).into());
    }
    // SAFETY: a function pointer of the caller's type is an address.
    Ok(unsafe { transmute_copy::<*mut c_void, F>(&address) })
}

fn present<T>(what: &str, object: *mut T) -> Result<*mut T, Fault> {
    if object.is_null() { Err(failed(what, std::io::Error::last_os_error())) } else { Ok(object) }
}

fn done(what: &str, code: c_int) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(failed(what, std::io::Error::from_raw_os_error(code))) }
}

fn failed(what: &str, error: std::io::Error) -> Fault {
    format!("{what}: {error}").into()
}

/// An open device with one protection domain.
pub struct Device {
    pub name: String,
    library: Library,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
}

impl Device {
    /// GID `index` of port 1.
    pub fn gid(&self, index: u8) -> Result<ibv_gid, Fault> {
        let mut gid = ibv_gid::from_bytes([0; 16]);
        // SAFETY: the context is open, and `gid` may be written.
        done("ibv_query_gid", unsafe {
            (self.library.query_gid)(self.context, 1, index.into(), &raw mut gid)
        })?;
        Ok(gid)
    }

    /// Registers `len` bytes of zeroed memory. `access`: bits `IBV_ACCESS_*`.
    pub fn memory(&self, len: usize, access: c_uint) -> Result<Memory, Fault> {
        // In words, so that it is aligned for atomics.
        let mut words = vec![0_u64; len.div_ceil(8)];
        // SAFETY: the memory stays where it is and lives as long as the region.
        let mr = unsafe {
            (self.library.reg_mr)(self.pd, words.as_mut_ptr().cast(), len, access as c_int)
        };
        let mr = present("ibv_reg_mr", mr)?;
        Ok(Memory { library: self.library, mr, words, len })
    }

    /// Creates a completion queue.
    pub fn completions(&self, capacity: u32) -> Result<Completions, Fault> {
        let capacity = c_int::try_from(capacity)?;
        // SAFETY: the context is open, and a null channel is permitted.
        let cq =
            unsafe { (self.library.create_cq)(self.context, capacity, null_mut(), null_mut(), 0) };
        Ok(Completions { library: self.library, cq: present("ibv_create_cq", cq)? })
    }

    /// Creates a queue pair in RESET that signals all sends.
    pub fn queue_pair(
        &self,
        kind: ibv_qp_type,
        cq: &Completions,
        depth: u32,
    ) -> Result<QueuePair, Fault> {
        let mut init = ibv_qp_init_attr::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type, init.sq_sig_all) = (cq.cq, cq.cq, kind, 1);
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (depth, depth);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
        // SAFETY: the domain is open, and the completion queue lives longer, because connections
        // drop their fields in that order.
        let qp =
            present("ibv_create_qp", unsafe { (self.library.create_qp)(self.pd, &raw mut init) })?;
        Ok(QueuePair { library: self.library, qp })
    }

    /// Allocates a memory window; `None` if the device has none.
    pub fn window(&self) -> Result<Option<Window>, Fault> {
        // SAFETY: the context is open; an empty slot is not called.
        let mw = unsafe {
            let Some(alloc_mw) = (*self.context).ops.alloc_mw else { return Ok(None) };
            alloc_mw(self.pd, IBV_MW_TYPE_2)
        };
        let reason = std::io::Error::last_os_error();
        match reason.raw_os_error() {
            _ if !mw.is_null() => Ok(Some(Window { mw })),
            Some(libc::EOPNOTSUPP) => Ok(None),
            _ => Err(failed("ibv_alloc_mw", reason)),
        }
    }

    /// Creates an address handle, for as long as the program runs.
    pub fn address_handle(&self, mut address: ibv_ah_attr) -> Result<*mut ibv_ah, Fault> {
        // SAFETY: the domain is open.
        present("ibv_create_ah", unsafe { (self.library.create_ah)(self.pd, &raw mut address) })
    }
}

/// A memory window that any work request can bind (type 2).
pub struct Window {
    mw: *mut ibv_mw,
}

impl Window {
    /// Its key after it is bound.
    pub fn bound_rkey(&self) -> u32 {
        // SAFETY: the window is allocated.
        let rkey = unsafe { (*self.mw).rkey };
        // The program chooses the last byte.
        (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
    }

    /// The request that binds it to all of `memory`.
    pub fn bind(&self, memory: &Memory, access: c_uint) -> ibv_send_wr {
        let bind_info = ibv_mw_bind_info {
            mr: memory.mr,
            addr: memory.address(),
            length: memory.len as u64,
            mw_access_flags: access,
        };
        let mut request = ibv_send_wr::zeroed();
        request.opcode = IBV_WR_BIND_MW;
        request.tail.bind_mw =
            ibv_send_wr_bind_mw { mw: self.mw, rkey: self.bound_rkey(), bind_info };
        request
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the window is allocated; a device with the slot that allocated it has this one
        // too.
        unsafe {
            if let Some(dealloc_mw) = (*(*self.mw).context).ops.dealloc_mw {
                dealloc_mw(self.mw);
            }
        }
    }
}

/// Registered memory.
pub struct Memory {
    library: Library,
    mr: *mut ibv_mr,
    words: Vec<u64>,
    len: usize,
}

impl Memory {
    /// Start address.
    pub fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    /// Key for the peer's requests.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.mr).rkey }
    }

    /// Scatter/gather element of the `len` bytes at `offset`.
    pub fn piece(&self, offset: usize, len: usize) -> ibv_sge {
        assert!(offset + len <= self.len);
        // SAFETY: the region is registered.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge { addr: self.address() + offset as u64, length: len as u32, lkey }
    }

    /// Reads bytes. The reads are volatile, because the device writes without the compiler's
    /// knowledge.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        let start = self.words.as_ptr().cast::<u8>();
        // SAFETY: the range is within the memory, which is initialised.
        (offset..offset + len).map(|at| unsafe { start.add(at).read_volatile() }).collect()
    }

    /// Writes `bytes`.
    pub fn fill(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        let start = self.words.as_mut_ptr().cast::<u8>();
        for (at, byte) in bytes.iter().enumerate() {
            // SAFETY: the range is within the memory.
            unsafe { start.add(offset + at).write_volatile(*byte) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the region is registered, and no device writes to it afterwards. The process ends
        // soon, whatever the outcome.
        unsafe { (self.library.dereg_mr)(self.mr) };
    }
}

/// A completion queue.
pub struct Completions {
    library: Library,
    cq: *mut ibv_cq,
}

impl Completions {
    /// The next completion, if any.
    pub fn poll(&self) -> Result<Option<ibv_wc>, Fault> {
        let mut wc = ibv_wc::zeroed();
        // SAFETY: the queue is live, the slot always exists, and one completion may be written.
        let count = unsafe {
            let poll_cq = (*(*self.cq).context).ops.poll_cq.ok_or("the device cannot poll")?;
            poll_cq(self.cq, 1, &raw mut wc)
        };
        match count {
            0 => Ok(None),
            1 => Ok(Some(wc)),
            _ => Err(format!("ibv_poll_cq returns {count}").into()),
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: the queue is live, and its queue pairs are gone; otherwise this fails without
        // effect.
        unsafe { (self.library.destroy_cq)(self.cq) };
    }
}

/// A queue pair.
pub struct QueuePair {
    library: Library,
    qp: *mut ibv_qp,
}

impl QueuePair {
    /// Its number.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair is live.
        unsafe { (*self.qp).qp_num }
    }

    /// Changes the attributes in `mask` (`IBV_QP_*`).
    pub fn modify(&self, mut attributes: ibv_qp_attr, mask: c_int) -> Result<(), Fault> {
        let what = format!("ibv_modify_qp to {:?}", attributes.qp_state);
        // SAFETY: the queue pair is live.
        done(&what, unsafe { (self.library.modify_qp)(self.qp, &raw mut attributes, mask) })
    }

    /// Its state, as reported by the device.
    pub fn state(&self) -> Result<ibv_qp_state, Fault> {
        let (mut attributes, mut init) = (ibv_qp_attr::zeroed(), ibv_qp_init_attr::zeroed());
        // SAFETY: the queue pair is live, and both may be written.
        let code = unsafe {
            (self.library.query_qp)(
                self.qp,
                &raw mut attributes,
                IBV_QP_STATE as c_int,
                &raw mut init,
            )
        };
        done("ibv_query_qp", code)?;
        Ok(attributes.qp_state)
    }

    /// Posts one send work request, with at most one piece of memory.
    pub fn post_send(&self, mut request: ibv_send_wr, piece: Option<ibv_sge>) -> Result<(), Fault> {
        let mut pieces = [piece.unwrap_or(ibv_sge::zeroed())];
        request.sg_list = pieces.as_mut_ptr();
        request.num_sge = c_int::from(piece.is_some());
        let mut bad = null_mut();
        // SAFETY: the queue pair is live, the slot always exists, and the list lives as long as the
        // call.
        let code = unsafe {
            let post = (*(*self.qp).context).ops.post_send.ok_or("the device cannot send")?;
            post(self.qp, &raw mut request, &raw mut bad)
        };
        done("ibv_post_send", code)
    }

    /// Posts one receive, with at most one piece of memory.
    pub fn post_receive(&self, wr_id: u64, piece: Option<ibv_sge>) -> Result<(), Fault> {
        let mut pieces = [piece.unwrap_or(ibv_sge::zeroed())];
        let num_sge = c_int::from(piece.is_some());
        let mut request =
            ibv_recv_wr { wr_id, next: null_mut(), sg_list: pieces.as_mut_ptr(), num_sge };
        let mut bad = null_mut();
        // SAFETY: as above.
        let code = unsafe {
            let post = (*(*self.qp).context).ops.post_recv.ok_or("the device cannot receive")?;
            post(self.qp, &raw mut request, &raw mut bad)
        };
        done("ibv_post_recv", code)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the queue pair is live.
        unsafe { (self.library.destroy_qp)(self.qp) };
    }
}
