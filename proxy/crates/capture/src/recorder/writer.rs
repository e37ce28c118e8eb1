//! Writes the packets of a file of mongod's traffic recorder.

use std::io::{self, Write};

use super::{Layout, MAX_PACKET_BYTES, Packet, PacketEvent};

/// Writes packets in one layout.
#[derive(Debug)]
pub struct RecorderWriter<W> {
    destination: W,
    layout: Layout,
}

impl<W: Write> RecorderWriter<W> {
    /// Creates a writer for a new file.
    pub fn new(destination: W, layout: Layout) -> Self {
        Self {
            destination,
            layout,
        }
    }

    /// Writes a packet. In the layout `Addresses`, every packet has a message. So with this layout,
    /// the function skips packets without a message.
    ///
    /// # Errors
    /// If the destination fails, or if the packet exceeds the size limit.
    pub fn push(&mut self, packet: &Packet) -> io::Result<()> {
        if self.layout == Layout::Addresses && packet.event != PacketEvent::Message {
            return Ok(());
        }
        let mut head = Vec::new();
        if self.layout == Layout::Events {
            head.push(match packet.event {
                PacketEvent::Message => 0,
                PacketEvent::SessionBegan => 1,
                PacketEvent::SessionEnded => 2,
            });
        }
        head.extend(packet.session.to_le_bytes());
        head.extend(packet.local.as_bytes());
        head.push(0);
        if self.layout == Layout::Addresses {
            head.extend(packet.remote.as_bytes());
            head.push(0);
        }
        let time = match self.layout.has_dates() {
            true => packet.at_us / 1000,
            false => packet.at_us,
        };
        head.extend(time.to_le_bytes());
        head.extend(packet.order.to_le_bytes());
        let size = 4 + head.len() + packet.message.len();
        if size > MAX_PACKET_BYTES {
            return Err(io::Error::other("the packet exceeds the size limit"));
        }
        let size = u32::try_from(size).map_err(io::Error::other)?;
        self.destination.write_all(&size.to_le_bytes())?;
        self.destination.write_all(&head)?;
        self.destination.write_all(&packet.message)
    }

    /// Ends the file and returns the destination.
    ///
    /// # Errors
    /// If the destination fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.destination.flush()?;
        Ok(self.destination)
    }
}
