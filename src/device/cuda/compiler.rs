//! To be replaced.
use crate::Error;
pub(super) struct Image;
impl Image {
    pub(super) fn bytes(&self) -> &[u8] {
        &[]
    }
}
pub(super) fn image(_: (u32, u32), _: &'static str) -> Result<Image, Error> {
    Ok(Image)
}
pub(super) const KERNEL_HASH: &str = "x";
