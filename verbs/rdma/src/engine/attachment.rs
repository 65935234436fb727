//! Attaching the engine's port, and the link that it has or waits for.

use super::Engine;
use crate::attach::{Attach, Line, Role};
use crate::device_state::DeviceState;
use crate::engine_thread;
use crate::error::RdmaError;
use crate::segment::{OnSegment, open_interface, open_tap};
use longhaul_memif::{MemifConfig, MemifPort};
use longhaul_port::{LinkState, Port};
use longhaul_udp::{UdpConfig, UdpPort};
use std::net::SocketAddr;
use std::time::Duration;

/// Minimum receive buffer of a socket, in bytes; below it the user is told how to enlarge it.
const RECEIVE_BUFFER_ENOUGH: usize = 4 << 20;
/// Time for which the first user of the port waits for its link.
const LINK_WAIT: Duration = Duration::from_secs(2);

/// A port and, on a segment, the segment's state.
type OpenPort = (Box<dyn Port>, Option<OnSegment>);

impl Engine {
    /// Attaches the port and starts the engine thread, once: at the first call that needs packets.
    ///
    /// A lab that does not answer is not an error: the port stays down, one line on stderr reports
    /// it, and queue pairs fail by their own retry limits.
    ///
    /// # Errors
    /// [`RdmaError::Io`] if the thread cannot be started; [`RdmaError::Forked`].
    pub fn start(&self) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        if self.started.get().is_some() {
            return Ok(());
        }
        match self.open_port() {
            Ok((port, on_segment)) => {
                state.port = Some(port);
                state.on_segment = on_segment;
            }
            Err(error) => {
                state.complained = true;
                let (host, line) = (&self.attach.host, &self.attach.line);
                eprintln!("longhaul: host {host}: cannot open {line}: {error}; the port is down");
            }
        }
        let now = self.now();
        state.service(now);
        // The lock is held throughout, so that a concurrent call finds the port started, or
        // retries.
        if let Err(error) = engine_thread::start(self.me.clone()) {
            state.port = None;
            return Err(error);
        }
        let _ = self.started.set(());
        drop(state);
        if self.attach.is_in_lab() || self.attach.is_on_segment() {
            self.wait_for_link(LINK_WAIT)?;
        }
        Ok(())
    }

    fn open_port(&self) -> Result<OpenPort, Box<dyn std::error::Error>> {
        let attach = &self.attach;
        let mut name = format!("{}.{}", attach.host, std::process::id());
        while name.len() > 31 {
            name.pop();
        }
        let port: Box<dyn Port> = match &attach.line {
            Line::Tap { name, .. } => {
                let (port, on_segment) = open_tap(attach, name)?;
                return Ok((port, Some(on_segment)));
            }
            Line::Interface { name, network } => {
                let me = self.me.clone();
                let told = move || {
                    if let Some(engine) = me.upgrade() {
                        engine.hand_over.wake().wake();
                    }
                };
                let (port, on_segment) = open_interface(attach, name, *network, told)?;
                return Ok((port, Some(on_segment)));
            }
            Line::Memif { socket, role, .. } => {
                let config = MemifConfig {
                    ring_size_log2: ring_size_log2(attach),
                    ..MemifConfig::new(&name)
                };
                let id = self.slot.number();
                match role {
                    Role::Slave => Box::new(MemifPort::slave(socket, id, config)?),
                    Role::Master => Box::new(MemifPort::master(socket, id, config)?),
                }
            }
            Line::Udp { port } => {
                let bind = SocketAddr::new(attach.ip_addr(), *port);
                let config = UdpConfig { bind, ..UdpConfig::new(&name, attach.ip_addr()) };
                let port = UdpPort::bind(&config)?;
                if let Ok((_, receive)) = port.socket_buffers()
                    && receive / 2 < RECEIVE_BUFFER_ENOUGH
                {
                    eprintln!(
                        "longhaul: host {}: the system grants a receive buffer of {} KiB only, so \
                         few packets are kept in flight; 'sysctl -w net.core.rmem_max={}' here and \
                         at the peers allows more",
                        attach.host,
                        receive >> 11,
                        config.receive_buffer_bytes,
                    );
                }
                Box::new(port)
            }
        };
        Ok((port, None))
    }

    /// Waits until the link is up. If it stays down, reports that on stderr, once.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn wait_for_link(&self, limit: Duration) -> Result<LinkState, RdmaError> {
        let begun = std::time::Instant::now();
        loop {
            let mut state = self.lock()?;
            let now = self.now();
            let link =
                if state.link() == LinkState::Up { LinkState::Up } else { state.service(now) };
            if link == LinkState::Up {
                return Ok(link);
            }
            if state.complained || begun.elapsed() >= limit {
                self.complain(&mut state);
                return Ok(link);
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reports once why the link is down.
    fn complain(&self, state: &mut DeviceState) {
        if !std::mem::replace(&mut state.complained, true) {
            let reason = state.port.as_ref().and_then(|port| port.last_disconnect());
            let reason = reason.unwrap_or(match self.attach.is_on_segment() {
                true => "it has no carrier (is it up, and is anybody at its other end?)",
                false => "nobody answers (is the lab up?)",
            });
            let (host, line) = (&self.attach.host, &self.attach.line);
            eprintln!("longhaul: host {host}: no link at {line}: {reason}; the port is down");
        }
    }

    /// Waits for a link that is not up yet: two processes may have been started together.
    pub(crate) fn await_peer(&self) -> Result<(), RdmaError> {
        if self.link() == LinkState::Down {
            self.wait_for_link(LINK_WAIT)?;
        }
        Ok(())
    }

    /// State of the link; before the port is attached, its probable state.
    #[must_use]
    pub fn link(&self) -> LinkState {
        if self.started.get().is_some()
            && let Ok(state) = self.lock()
        {
            return state.link();
        }
        match &self.attach.line {
            Line::Memif { socket, back_to_back: false, .. } if !socket.exists() => {}
            _ => return LinkState::Up,
        }
        if let Ok(mut state) = self.lock() {
            self.complain(&mut state);
        }
        LinkState::Down
    }
}

/// Descriptors per ring, as a base-2 logarithm.
///
/// Between two processes the rings' buffers should stay in the caches: 512 times 4352 bytes, 2.2
/// MB. A lab serves several processes on few processors; 2048 frames are 7 ms at 10 Gbit/s, so it
/// can continue while this process waits to be scheduled.
fn ring_size_log2(attach: &Attach) -> u8 {
    if attach.is_back_to_back() { 9 } else { 11 }
}
