"""The lab: a local page that turns images and shows what equivariant models make of them. Python computes, it draws."""
