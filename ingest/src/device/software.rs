//! The software RNIC of this process, through the verbs crate.

use super::{
    Completion, CompletionKind, Completions, Device, DeviceError, Endpoint, Pair, PairSettings,
    Path, Registration, SharedReceives, Transport, Write,
};
use crate::memory::Memory;
use longhaul_rdma as rdma;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The device that the environment describes, as `longhaul exec` sets it.
pub struct Software {
    device: rdma::Device,
    pd: rdma::ProtectionDomain,
}

impl Software {
    /// Opens the device.
    ///
    /// # Errors
    /// If the environment describes none.
    pub fn open() -> Result<Self, DeviceError> {
        let device = rdma::Device::from_env().map_err(failed("open the device"))?;
        Self::new(device)
    }

    /// Uses an open device.
    ///
    /// # Errors
    /// If it is out of protection domains.
    pub fn new(device: rdma::Device) -> Result<Self, DeviceError> {
        let pd = device.alloc_pd().map_err(failed("allocate a protection domain"))?;
        Ok(Software { device, pd })
    }
}

fn failed(action: &'static str) -> impl Fn(rdma::RdmaError) -> DeviceError {
    move |cause| DeviceError::new(action, cause)
}

impl Registration for rdma::MemoryRegion {
    fn address(&self) -> u64 {
        rdma::MemoryRegion::address(self, 0)
    }

    fn rkey(&self) -> u32 {
        rdma::MemoryRegion::rkey(self).0
    }
}

impl Completions for rdma::CompletionQueue {
    fn poll(&self, max: usize, found: &mut Vec<Completion>) -> Result<(), DeviceError> {
        let take = |completion: rdma::Completion| {
            let kind = match (completion.status, completion.op, completion.immediate) {
                (
                    rdma::Status::Success,
                    rdma::CompletionOp::RecvWriteImmediate,
                    Some(immediate),
                ) => CompletionKind::Arrived { immediate, bytes: completion.byte_len },
                (rdma::Status::Success, rdma::CompletionOp::Write, _) => {
                    CompletionKind::Sent { tag: completion.wr_id }
                }
                (rdma::Status::Success, ..) => CompletionKind::Foreign,
                (status, ..) => CompletionKind::Failed { status: status as u32 },
            };
            found.push(Completion { qpn: completion.qpn.get(), kind });
        };
        rdma::CompletionQueue::poll(self, max, take).map_err(failed("poll"))?;
        Ok(())
    }

    fn arm(&self, solicited_only: bool) -> Result<(), DeviceError> {
        rdma::CompletionQueue::arm(self, solicited_only).map_err(failed("request an event"))
    }

    fn wait(&self, limit: Duration) -> Result<(), DeviceError> {
        match self.wait_for_event(limit) {
            Ok(()) | Err(rdma::RdmaError::TimedOut(_)) => Ok(()),
            Err(error) => Err(failed("wait for an event")(error)),
        }
    }
}

impl SharedReceives for rdma::SharedReceiveQueue {
    fn post(&self, count: u32) -> Result<(), DeviceError> {
        self.post_empty(0, count).map_err(failed("post receives"))
    }
}

impl Pair for rdma::QueuePair {
    type Registration = rdma::MemoryRegion;

    fn qpn(&self) -> u32 {
        rdma::QueuePair::qpn(self).get()
    }

    fn connect(&self, psn: u32, peer: Endpoint, path: Path) -> Result<(), DeviceError> {
        let code = (path.mtu / 256).checked_ilog2().map_or(0, |log| log as u8 + 1);
        let mtu = rdma::Mtu::from_code(code)
            .ok_or_else(|| DeviceError::new("connect", "an invalid path MTU"))?;
        let peer = rdma::Endpoint {
            ip: path.address,
            qpn: rdma::Qpn::new(peer.qpn & rdma::Qpn::MAX),
            psn: rdma::Psn::new(peer.psn),
        };
        let path =
            rdma::PathSettings { mtu, access: rdma::Access::REMOTE_WRITE, ..Default::default() };
        rdma::QueuePair::connect(self, rdma::Psn::new(psn), &peer, &path)
            .map_err(failed("connect a queue pair"))
    }

    fn post_receives(&self, count: u32) -> Result<(), DeviceError> {
        self.post_empty_recvs(0, count).map_err(failed("post receives"))
    }

    fn post_writes(
        &self,
        memory: &Self::Registration,
        writes: &[Write],
    ) -> Result<(), DeviceError> {
        let requests = writes.iter().map(|write| rdma::Request {
            wr_id: write.tag,
            op: rdma::SendOp::Write {
                remote_address: write.remote_address,
                rkey: rdma::RKey(write.rkey),
                immediate: Some(write.immediate),
            },
            piece: memory.piece(write.offset, write.bytes),
            signaled: write.signaled,
            solicited: write.solicited,
        });
        self.post_list(requests).map_err(|(_, error)| failed("post a WRITE")(error))
    }
}

impl Device for Software {
    type Registration = rdma::MemoryRegion;
    type Completions = rdma::CompletionQueue;
    type SharedReceives = rdma::SharedReceiveQueue;
    type Pair = rdma::QueuePair;

    fn address(&self) -> IpAddr {
        self.device.engine().attach().ip_addr()
    }

    fn mac(&self) -> Option<[u8; 6]> {
        Some(self.device.engine().attach().mac.0)
    }

    fn path_mtu(&self) -> u32 {
        self.device.engine().attach().path_mtu.into()
    }

    fn register(&self, memory: &Arc<Memory>) -> Result<Self::Registration, DeviceError> {
        let access = rdma::Access::LOCAL_WRITE.and(rdma::Access::REMOTE_WRITE);
        let keeper: rdma::Keeper = memory.clone();
        // SAFETY: the region holds the memory, which is accessed by copies alone.
        unsafe { self.pd.register_at(memory.as_ptr(), memory.len(), access, keeper) }
            .map_err(failed("register memory"))
    }

    fn completions(&self, depth: u32) -> Result<Self::Completions, DeviceError> {
        self.device.create_cq(depth).map_err(failed("create a completion queue"))
    }

    fn shared_receives(&self, depth: u32) -> Result<Self::SharedReceives, DeviceError> {
        self.device.create_srq(&self.pd, depth, 1, 0).map_err(failed("create a receive queue"))
    }

    fn pair(
        &self,
        completions: &Self::Completions,
        settings: &PairSettings,
        shared: Option<&Self::SharedReceives>,
    ) -> Result<Self::Pair, DeviceError> {
        let kind = match settings.transport {
            Transport::Uc => rdma::QpKind::Uc,
            Transport::Rc => rdma::QpKind::Rc,
        };
        let init = rdma::QueuePairSettings {
            kind,
            send_depth: settings.send_depth,
            recv_depth: settings.receive_depth,
            segments_max: 1,
            inline_max: 0,
        };
        let pair = match shared {
            Some(shared) => {
                self.device.create_qp_sharing(&self.pd, completions, completions, &init, shared)
            }
            None => self.device.create_qp(&self.pd, completions, completions, &init),
        }
        .map_err(failed("create a queue pair"))?;
        let path = rdma::PathSettings { access: rdma::Access::REMOTE_WRITE, ..Default::default() };
        pair.initialize(&path).map_err(failed("initialize a queue pair"))?;
        Ok(pair)
    }

    fn fresh_psn(&self) -> u32 {
        self.device.engine().fresh_psn().get()
    }

    fn out_of_buffer(&self) -> Option<u64> {
        self.device.out_of_buffer().ok()
    }
}
