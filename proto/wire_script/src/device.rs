//! The device of a script: memory with one region, completions, counters.

use longhaul_node::{Gather, Payload};
use longhaul_units::{LKey, RKey};
use longhaul_wire::{MacAddr, Path, PathTemplate, Transport};
use longhaul_work::{AhId, Completion, Context, Counters, Denied, Intent, RemoteIntent};
use std::cell::Cell;
use std::net::IpAddr;
use std::ops::Range;

/// Local and remote key of the region.
pub const KEY: u32 = 1;

/// Memory by its address.
pub struct Memory(pub Vec<u8>);

impl Gather for Memory {
    fn gather(&self, address: u64, out: &mut [u8]) {
        let at = address as usize;
        out.copy_from_slice(&self.0[at..at + out.len()]);
    }
}

/// A device with one memory region. It panics if its transport asks for a service that the
/// transport does not have, or writes where it was not granted access.
pub struct Device {
    /// Filled with `ee` at first.
    pub memory: Memory,
    /// The region, for work requests of this side.
    pub local: Range<u64>,
    /// The region, for requests of the peer.
    pub remote: Range<u64>,
    /// The QP permits remote access.
    pub permits: bool,
    /// The QP permits atomics.
    pub permits_atomics: bool,
    /// The region allows atomics.
    pub allows_atomics: bool,
    /// Added to each address that the peer names, to change its alignment.
    pub shift: u64,
    /// By address handle, from 1.
    pub paths: Vec<PathTemplate>,
    /// All completions, oldest first.
    pub completions: Vec<Completion>,
    /// The device's counters.
    pub counters: Counters,
    transport: Transport,
    /// The latest range to which access was granted.
    granted: Cell<(u64, u64)>,
}

impl Device {
    /// A device with `memory` bytes, all of which are in its region.
    pub fn new(transport: Transport, memory: usize) -> Self {
        Device {
            memory: Memory(vec![0xee; memory]),
            local: 0..memory as u64,
            remote: 0..memory as u64,
            permits: true,
            permits_atomics: true,
            allows_atomics: true,
            shift: 0,
            paths: Vec::new(),
            completions: Vec::new(),
            counters: Counters::default(),
            transport,
            granted: Cell::new((0, 0)),
        }
    }

    /// Eight bytes of memory, as a number.
    pub fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.memory.0[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Sets eight bytes of memory.
    pub fn set_word(&mut self, at: usize, value: u64) {
        self.memory.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }

    /// Removes the region, or restores it.
    pub(crate) fn set_region(&mut self, is_there: bool) {
        let end = if is_there { self.memory.0.len() as u64 } else { 0 };
        (self.local, self.remote) = (0..end, 0..end);
    }

    /// Forgets the latest grant.
    pub(crate) fn revoke(&mut self) {
        self.granted.set((0, 0));
    }

    fn open(&self, region: &Range<u64>, key: u32, address: u64, len: u64) -> Result<u64, Denied> {
        let end = address.checked_add(len).ok_or(Denied)?;
        if key != KEY || address < region.start || end > region.end {
            return Err(Denied);
        }
        Ok(address)
    }

    fn grant(&self, address: u64, len: u64) -> u64 {
        self.granted.set((address, address + len));
        address
    }

    fn check_grant(&self, address: u64, len: u64) {
        let (start, end) = self.granted.get();
        let is_within = start <= address && address + len <= end;
        assert!(is_within, "{address}..{} was not granted", address + len);
    }

    fn serves(&self, transports: &[Transport], what: &str) {
        assert!(transports.contains(&self.transport), "{:?} has no {what}", self.transport);
    }
}

impl Context for Device {
    fn local(&self, lkey: LKey, address: u64, len: u32, _: Intent) -> Result<u64, Denied> {
        let address = self.open(&self.local, lkey.0, address, len.into())?;
        Ok(self.grant(address, len.into()))
    }
    fn remote(
        &self,
        rkey: RKey,
        address: u64,
        len: u64,
        intent: RemoteIntent,
    ) -> Result<u64, Denied> {
        self.serves(&[Transport::Rc, Transport::Uc], "remote memory");
        if intent == RemoteIntent::Atomic && !self.allows_atomics {
            return Err(Denied);
        }
        let address = self.open(&self.remote, rkey.0, address, len)?;
        Ok(self.grant(address + self.shift, len))
    }
    fn permits(&self, intent: RemoteIntent) -> bool {
        self.serves(&[Transport::Rc, Transport::Uc], "remote access");
        self.permits && (self.permits_atomics || intent != RemoteIntent::Atomic)
    }
    fn invalidate(&mut self, rkey: RKey) -> bool {
        self.serves(&[Transport::Rc], "invalidation");
        rkey.0 == KEY
    }
    fn scatter(&mut self, address: u64, payload: &Payload<'_>) {
        self.check_grant(address, payload.len() as u64);
        let at = address as usize;
        payload.copy_to(&mut self.memory.0[at..at + payload.len()]);
    }
    fn fetch_add(&mut self, address: u64, add: u64) -> u64 {
        self.serves(&[Transport::Rc], "atomics");
        self.check_grant(address, 8);
        let found = self.word(address as usize);
        self.set_word(address as usize, found.wrapping_add(add));
        found
    }
    fn compare_swap(&mut self, address: u64, compare: u64, swap: u64) -> u64 {
        self.serves(&[Transport::Rc], "atomics");
        self.check_grant(address, 8);
        let found = self.word(address as usize);
        if found == compare {
            self.set_word(address as usize, swap);
        }
        found
    }
    fn path(&self, ah: AhId) -> Option<&PathTemplate> {
        self.paths.get((ah.0 as usize).checked_sub(1)?)
    }
    fn gather(&self) -> &dyn Gather {
        &self.memory
    }
    fn complete_send(&mut self, completion: Completion) {
        self.completions.push(completion);
    }
    fn complete_receive(&mut self, completion: Completion) {
        self.completions.push(completion);
    }
    fn counters(&mut self) -> &mut Counters {
        &mut self.counters
    }
}

/// Headers from 10.0.0.1 to 10.0.0.2.
pub fn template() -> PathTemplate {
    template_of(|host| IpAddr::from([10, 0, 0, host]), 0)
}

/// Headers from fd00::1 to fd00::2.
pub fn template_v6() -> PathTemplate {
    template_of(|host| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)]), 0xabcde)
}

fn template_of(ip: impl Fn(u8) -> IpAddr, flow_label: u32) -> PathTemplate {
    PathTemplate::new(&Path {
        source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        source_ip: ip(1),
        destination_ip: ip(2),
        traffic_class: 0x68,
        hop_limit: 63,
        flow_label,
        udp_source_port: 0xc000,
    })
}
